#include "lib/base/utf8.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(ValidUtf8, shouldKeepWhatIsValid) {
  for (const std::string text : {"", "disk full", "größer", "€", "\xf0\x9f\x94\xa5"}) {
    EXPECT_EQ(ValidUtf8(text, 256), text);
  }
}

TEST(ValidUtf8, shouldReplaceEachByteThatIsNot) {
  EXPECT_EQ(ValidUtf8("a\xff"
                      "b",
                      256),
            "a?b");
  EXPECT_EQ(ValidUtf8("\xc3", 256), "?");                 // cut off
  EXPECT_EQ(ValidUtf8("\xc3(", 256), "?(");               // no continuation
  EXPECT_EQ(ValidUtf8("\xc0\xaf", 256), "??");            // longer than needed
  EXPECT_EQ(ValidUtf8("\xe0\x80\xaf", 256), "???");       // likewise
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80", 256), "???");       // a surrogate
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80", 256), "????");  // beyond the last code point
}

TEST(IsUtf8, shouldTellTextFromBytes) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("größer"));
  EXPECT_FALSE(IsUtf8("a\xff"));
  EXPECT_FALSE(IsUtf8("\xc3"));
}

TEST(ValidUtf8, shouldCutBetweenCharacters) {
  EXPECT_EQ(ValidUtf8("abc", 2), "ab");
  EXPECT_EQ(ValidUtf8("a\u00e4", 2), "a");
  EXPECT_EQ(ValidUtf8("a\u00e4", 3), "a\u00e4");
}

}  // namespace
}  // namespace baton
