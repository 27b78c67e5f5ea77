#include "lib/text/trace_parent.h"

#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

const std::string kGood = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceParent, shouldTakeWhatTheStandardGivesAsAnExample) {
  EXPECT_EQ(CheckedTraceParent(kGood), kGood);
}

TEST(TraceParent, shouldTakeTheKnownFieldsOfALaterVersion) {
  EXPECT_EQ(CheckedTraceParent("01" + kGood.substr(2)), kGood);
  EXPECT_EQ(CheckedTraceParent("cc" + kGood.substr(2) + "-what-the-future-will-be-like"), kGood);
  EXPECT_EQ(CheckedTraceParent("cc" + kGood.substr(2) + ".what"), "");
}

TEST(TraceParent, shouldTakeNothingElse) {
  const auto with = [](size_t at, const std::string& text) {
    return std::string(kGood).replace(at, text.size(), text);
  };
  EXPECT_EQ(CheckedTraceParent(""), "");
  EXPECT_EQ(CheckedTraceParent(kGood.substr(0, kGood.size() - 1)), "") << "too short";
  EXPECT_EQ(CheckedTraceParent(kGood + "-more"), "") << "version 00 has no more";
  EXPECT_EQ(CheckedTraceParent(with(0, "ff")), "") << "no version";
  EXPECT_EQ(CheckedTraceParent(with(0, "0x")), "");
  EXPECT_EQ(CheckedTraceParent(with(3, std::string(32, '0'))), "") << "no trace";
  EXPECT_EQ(CheckedTraceParent(with(36, std::string(16, '0'))), "") << "no parent";
  EXPECT_EQ(CheckedTraceParent(with(3, "0AF7")), "") << "capitals";
  EXPECT_EQ(CheckedTraceParent(with(40, "\n")), "");
  EXPECT_EQ(CheckedTraceParent(with(53, "g0")), "");
  for (const size_t dash : {2, 35, 52}) EXPECT_EQ(CheckedTraceParent(with(dash, "_")), "") << dash;
}

}  // namespace
}  // namespace baton
