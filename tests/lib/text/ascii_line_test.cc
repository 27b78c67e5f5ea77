#include "lib/text/one_line.h"

#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(AsciiLineTest, shouldHaveNothingThatMetadataCannotCarry) {
  EXPECT_EQ(AsciiLine("kv: no keeper", 100), "kv: no keeper");
  EXPECT_EQ(AsciiLine("a\u00e4\n\x7f~", 100), "a????~");
  EXPECT_EQ(AsciiLine(std::string("a\0b\xff", 4), 100), "a?b?");
  EXPECT_EQ(AsciiLine("abcdef", 3), "abc");
  EXPECT_EQ(AsciiLine("", 3), "");
}

}  // namespace
}  // namespace baton
