
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

TEST(Table, WrapsALastColumnThatDoesNotFitTheTerminal) {
  Table table({"ID", "WHY"}, {.columns = 24});
  table.Add({"1", "one two three four five six"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(),
            "ID  WHY\n"
            "1   one two three four\n"
            "    five six\n");
}

TEST(Table, WrapsTheValuesOfFields) {
  std::ostringstream out;
  PrintFields(out, {{"A", "x"}, {"Long", "one two three four five"}}, {.columns = 24});
  EXPECT_EQ(out.str(),
            "A:     x\n"
            "Long:  one two three\n"
            "       four five\n");
}

TEST(Table, PaintsStatesWhereAskedTo) {
  const auto print = [](bool colour) {
    Table table({"NAME", "!STATE", "NOTE"}, {.colour = colour});
    table.Add({"ok", "ready", "ok"});
    table.Add({"x", "unknown"});
    std::ostringstream out;
    table.Print(out);
    PrintFields(out, {{"!Health", "bad: disk full"}}, {.colour = colour});
    return out.str();
  };
  EXPECT_EQ(print(false),
            "NAME  STATE    NOTE\n"
            "ok    ready    ok\n"
            "x     unknown  -\n"
            "Health:  bad: disk full\n");
  EXPECT_EQ(print(true),
            "NAME  STATE    NOTE\n"
            "ok    \x1b[32mready\x1b[0m    ok\n"
            "x     unknown  -\n"
            "Health:  \x1b[31mbad: disk full\x1b[0m\n");
}

TEST(Table, AlignsNamesThatAreNotAscii) {
  Table table({"NAME", "NOTE"});
  table.Add({"caf\xc3\xa9", "x"});
  table.Add({"plain", "y"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), "NAME   NOTE\ncaf\xc3\xa9   x\nplain  y\n");
}

TEST(Wrap, KeepsWhatIsThereToBeCopied) {
  EXPECT_EQ(Wrap("see `baton worker list` now", 2, 0, 12), "see\n  `baton worker list`\n  now");
  EXPECT_EQ(Wrap("a lone ` quote", 0, 0, 6), "a lone\n`\nquote");
  EXPECT_EQ(Wrap("", 0, 0, 10), "");
}

TEST(Paint, KnowsStatesWithWhatFollowsThem) {
  EXPECT_EQ(ColourOf("watching, 25s left"), Colour::kYellow);
  EXPECT_EQ(ColourOf("watching (paused), 25s left"), Colour::kYellow);
  EXPECT_EQ(ColourOf("rolled back: worker 2 died"), Colour::kRed);
  EXPECT_EQ(ColourOf("completed"), Colour::kGreen);
  EXPECT_EQ(ColourOf("4 of 4"), Colour::kNone);
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
  EXPECT_EQ(FormatBuffers(16u << 20, 4, 0), "16MiB");
  EXPECT_EQ(FormatBuffers(16u << 20, 1, 64u << 20), "16MiB and 1 heap of 64MiB");
  EXPECT_EQ(FormatBuffers(16u << 20, 4, 64u << 20), "16MiB and 4 heaps of 64MiB");
  EXPECT_EQ(FormatTime(0), "1970-01-01T00:00:00.000000Z");
  EXPECT_EQ(FormatSeconds(1'999'999), "1970-01-01T00:00:01Z");
  EXPECT_EQ(FormatAgo(61), "1m01s ago");
}

TEST(Format, States) {
  EXPECT_EQ(FormatState(v1::WORKER_STATE_DYING), "dying");
  EXPECT_EQ(FormatState(v1::CONNECTION_STATE_ESTABLISHED), "established");
  EXPECT_EQ(FormatState(v1::UPGRADE_PHASE_HANDING_OVER), "handing over");
  EXPECT_EQ(FormatState(static_cast<v1::WorkerState>(99)), "unknown");
}

}  // namespace
}  // namespace baton
