#include "lib/text/one_line.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

TEST(OneLineTest, shouldLeaveTextAsItIs) {
  EXPECT_EQ(OneLine("Grüße, 世界", 100), "Grüße, 世界");
  EXPECT_EQ(OneLine("", 100), "");
}

TEST(OneLineTest, shouldHaveNothingThatEndsALineOrCommandsATerminal) {
  EXPECT_EQ(OneLine("a\nb\r\tc\x1b[31m\x7f", 100), "a?b??c?[31m?");
  EXPECT_EQ(OneLine(std::string("a\0b", 3), 100), "a?b");
  EXPECT_EQ(OneLine("a\xc2\x9b"
                    "31mb\xc2\xa0",
                    100),
            "a?31mb\xc2\xa0");
}

TEST(OneLineTest, shouldBeValidUtf8OfAtMostSoManyBytes) {
  EXPECT_EQ(OneLine("ab\xff"
                    "c",
                    100),
            "ab?c");
  EXPECT_EQ(OneLine("aü", 2), "a");
  EXPECT_EQ(OneLine("abcdef", 3), "abc");
}

}  // namespace
}  // namespace baton
