#include "lib/log/standard_error.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <string>

#include "lib/base/file_descriptor.h"
#include "spdlog/spdlog.h"

namespace baton::log {
namespace {

using ::testing::HasSubstr;

struct Ends {
  FileDescriptor reader, writer;
};

Ends MakePipe() {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Ends MakeSocketPair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::string ReadSome(int fd) {
  std::string text(1 << 20, '\0');
  const ssize_t got = read(fd, text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

class PatientWriterTest : public ::testing::TestWithParam<Ends (*)()> {};

TEST_P(PatientWriterTest, shouldWriteWholeLinesOrNothingAndNeverWait) {
  const Ends ends = GetParam()();
  PatientWriter writer(ends.writer.get());
  const std::string line = std::string(1023, '.') + "\n";
  size_t written = 0;
  while (writer.Write(line)) ++written;
  ASSERT_GT(written, 0u);
  std::string all;
  while (all.size() < written * line.size()) all += ReadSome(ends.reader.get());
  EXPECT_EQ(all.size(), written * line.size());
  EXPECT_TRUE(writer.Write(line));
}

TEST_P(PatientWriterTest, shouldLeaveTheFlagsOfWhatOthersHaveToo) {
  const Ends ends = GetParam()();
  PatientWriter writer(ends.writer.get());
  ASSERT_TRUE(writer.Write("x"));
  EXPECT_EQ(fcntl(ends.writer.get(), F_GETFL) & O_NONBLOCK, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, PatientWriterTest, ::testing::Values(MakePipe, MakeSocketPair),
                         [](const auto& info) { return info.index == 0 ? "Pipe" : "Socket"; });

// Puts `fd` in the place of standard error, while it lives.
class StandardError {
 public:
  explicit StandardError(int fd) { dup2(fd, STDERR_FILENO); }
  ~StandardError() { dup2(former_.get(), STDERR_FILENO); }

 private:
  const FileDescriptor former_{fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)};
};

TEST(LogToStandardErrorTest, shouldSayHowManyLinesNobodyTook) {
  const Ends ends = MakePipe();
  const StandardError there(ends.writer.get());
  LogToStandardError("baton", LogThread::kNone);
  const std::string page(PIPE_BUF - 100, '.');
  std::string all;
  // More than a pipe holds.
  for (int i = 0; i < 100; ++i) spdlog::info("{}", page);
  while (all.find("lines were lost") == std::string::npos) {
    all = ReadSome(ends.reader.get());
    spdlog::info("and on");
  }
  EXPECT_THAT(all, HasSubstr("nobody took them from standard error\n"));
  EXPECT_THAT(ReadSome(ends.reader.get()) + all, HasSubstr("and on\n"));
}

TEST(LogToStandardErrorTest, shouldEndALineThatIsCut) {
  const Ends ends = MakePipe();
  const StandardError there(ends.writer.get());
  LogToStandardError("baton", LogThread::kNone);
  spdlog::info("{}", std::string(2 * PIPE_BUF, '.'));
  const std::string line = ReadSome(ends.reader.get());
  EXPECT_EQ(line.size(), static_cast<size_t>(PIPE_BUF));
  EXPECT_EQ(line.back(), '\n');
}

TEST(LogToStandardErrorTest, shouldNotEndTheProcessWhenTheReaderHasGone) {
  Ends ends = MakePipe();
  const StandardError there(ends.writer.get());
  LogToStandardError("baton", LogThread::kNone);
  ends.reader.Reset();
  spdlog::info("to nobody");
  EXPECT_EQ(write(ends.writer.get(), "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
}

}  // namespace
}  // namespace baton::log
