#include "supervisor/cli/table.h"

#include <sstream>

#include "gtest/gtest.h"
#include "supervisor/cli/format.h"

namespace baton {
namespace {

TEST(Table, AlignsAndNeverEndsALineWithSpaces) {
  Table table({"NAME", ">COUNT", "NOTE"});
  table.Add({"a", "1000000", "x"});
  table.Add({"long-name", "7"});
  std::ostringstream out;
  table.Print(out, " ");
  EXPECT_EQ(out.str(),
            " NAME         COUNT  NOTE\n"
            " a          1000000  x\n"
            " long-name        7  -\n");
}

TEST(Table, KeepsControlCharactersFromTheTerminal) {
  Table table({"NAME"});
  table.Add({"a\x1b[2Jb\nc"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), "NAME\na?[2Jb?c\n");
}

TEST(Format, Durations) {
  EXPECT_EQ(FormatDuration(0), "0ms");
  EXPECT_EQ(FormatDuration(0.34), "340ms");
  EXPECT_EQ(FormatDuration(59.9), "59s");
  EXPECT_EQ(FormatDuration(61), "1m01s");
  EXPECT_EQ(FormatDuration(3700), "1h01m");
  EXPECT_EQ(FormatDuration(90000), "1d01h");
}

TEST(Format, Amounts) {
  EXPECT_EQ(FormatMicroseconds(25.6), "26us");
  EXPECT_EQ(FormatMicroseconds(1234), "1.2ms");
  EXPECT_EQ(FormatMicroseconds(2.5e6), "2.5s");
  EXPECT_EQ(FormatBytes(100), "100B");
  EXPECT_EQ(FormatBytes(1536), "1.5KiB");
  EXPECT_EQ(FormatBytes(16u << 20), "16MiB");
  EXPECT_EQ(FormatTime(0), "1970-01-01T00:00:00.000000Z");
}

TEST(Format, States) {
  EXPECT_EQ(FormatState(v1::WORKER_STATE_DYING), "dying");
  EXPECT_EQ(FormatState(v1::CONNECTION_STATE_ESTABLISHED), "established");
  EXPECT_EQ(FormatState(v1::UPGRADE_PHASE_HANDING_OVER), "handing over");
  EXPECT_EQ(FormatState(static_cast<v1::WorkerState>(99)), "unknown");
}

}  // namespace
}  // namespace baton
