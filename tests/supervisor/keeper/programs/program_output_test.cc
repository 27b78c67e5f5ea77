#include "supervisor/keeper/programs/program_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "lib/base/clock.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "supervisor/driver/workers/output_lines.h"

namespace baton::keeper {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ProgramOutputTest : public ::testing::Test {
 protected:
  ProgramOutputTest() {
    auto logger = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(written_));
    logger->set_pattern("%v");
    spdlog::set_default_logger(std::move(logger));
  }
  std::vector<std::string> Written() const {
    return absl::StrSplit(written_.str(), '\n', absl::SkipEmpty());
  }

  std::ostringstream written_;
};

TEST_F(ProgramOutputTest, shouldMarkEachLineAsWhoseItIs) {
  driver_process::OutputLines lines("process 7");
  lines.Add("one\nkeeper_ready: t", 0);
  lines.Add("wo\nthe last", 0);
  lines.End(0);
  EXPECT_THAT(Written(), ElementsAre("worker_output: process 7: one",
                                     "worker_output: process 7: keeper_ready: two",
                                     "worker_output: process 7: the last"));
}

TEST_F(ProgramOutputTest, shouldLetNothingThroughThatMakesALineOrCommandsATerminal) {
  driver_process::OutputLines lines("process 7");
  lines.Add(std::string("a\tb\rworker_killed: \x1b[2J\x80") + '\0' + "\n", 0);
  ASSERT_EQ(Written().size(), 1u);
  const std::string line = Written()[0];
  EXPECT_THAT(line, HasSubstr("process 7: a b?worker_killed: ?[2J"));
  for (const char byte : line) EXPECT_NE(byte & 0xe0, 0) << static_cast<int>(byte);
}

TEST_F(ProgramOutputTest, shouldGoOnInAnotherLineWhenOneIsTooLong) {
  driver_process::OutputLines lines("p");
  lines.Add(std::string(2 * driver_process::OutputLines::kMaxLineBytes + 5, 'x') + "\n\ny\n", 0);
  const std::vector<std::string> written = Written();
  ASSERT_EQ(written.size(), 5u);
  EXPECT_EQ(written[0],
            "worker_output: p: " + std::string(driver_process::OutputLines::kMaxLineBytes, 'x'));
  EXPECT_EQ(written[1], written[0]);
  EXPECT_EQ(written[2], "worker_output: p: xxxxx");
  EXPECT_EQ(written[4], "worker_output: p: y");
}

TEST_F(ProgramOutputTest, shouldWritePartOfAFloodAndThenWhatItLacks) {
  driver_process::OutputLines lines("p");
  const uint64_t now = MonotonicNanoseconds();
  for (uint32_t i = 0; i < driver_process::OutputLines::kBurst + 3; ++i) lines.Add("x\n", now);
  EXPECT_EQ(Written().size(), size_t{driver_process::OutputLines::kBurst});
  lines.Add("y\n", now + 1'000'000'000);
  EXPECT_EQ(Written().size(), size_t{driver_process::OutputLines::kBurst} + 2);
  EXPECT_THAT(Written()[driver_process::OutputLines::kBurst],
              HasSubstr("3 lines of p have come too fast"));
  EXPECT_EQ(Written().back(), "worker_output: p: y");
}

TEST_F(ProgramOutputTest, shouldReadUntilAllHaveClosedIt) {
  boost::asio::io_context loop;
  Pipe pipe = driver_process::MakeOutputPipe().value();
  const ProgramOutput output(loop, std::move(pipe.reading), "p");
  ASSERT_EQ(write(pipe.writing.get(), "one\n", 4), 4);
  loop.run_one();
  EXPECT_THAT(Written(), ElementsAre("worker_output: p: one"));
  ASSERT_EQ(write(pipe.writing.get(), "two", 3), 3);
  pipe.writing.Reset();
  loop.run();  // there is nothing to wait for any more
  EXPECT_THAT(Written(), ElementsAre("worker_output: p: one", "worker_output: p: two"));
}

// What it has started may print on.
TEST_F(ProgramOutputTest, shouldTakeWhatIsThereWhenTheProgramHasEnded) {
  boost::asio::io_context loop;
  Pipe pipe = driver_process::MakeOutputPipe().value();
  auto output = std::make_unique<ProgramOutput>(loop, std::move(pipe.reading), "p");
  ASSERT_EQ(write(pipe.writing.get(), "one\ntw", 6), 6);
  output.reset();
  EXPECT_THAT(Written(), ElementsAre("worker_output: p: one", "worker_output: p: tw"));
  loop.run();
}

TEST_F(ProgramOutputTest, shouldLetOthersHaveTheLoopWhileAProgramPrintsWithoutEnd) {
  boost::asio::io_context loop;
  Pipe pipe = driver_process::MakeOutputPipe().value();
  const ProgramOutput output(loop, std::move(pipe.reading), "p");
  const std::string much(driver_process::OutputLines::kReadBytes * 2, '.');
  ASSERT_EQ(write(pipe.writing.get(), much.data(), much.size()), static_cast<ssize_t>(much.size()));
  loop.run_one();
  EXPECT_EQ(loop.poll(), 0u);  // it waits, though there is more
}

}  // namespace
}  // namespace baton::keeper
