#include "supervisor/keeper/program_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/log/log.h"
#include "lib/text/one_line.h"

namespace baton::keeper {
namespace {

// After a read that left something: a program that prints without end gets no more of the loop.
constexpr std::chrono::milliseconds kPause(5);
// More than a pipe holds, and bounded, because a process may go on printing.
constexpr int kMostReadsAtEnd = 16;

}  // namespace

absl::StatusOr<OutputPipe> MakeOutputPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2 (see RLIMIT_NOFILE)");
  OutputPipe pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  if (fcntl(pipe.reader.get(), F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "O_NONBLOCK");
  return pipe;
}

// ---------------------------------------------------------------- lines

OutputLines::OutputLines(std::string whose)
    : whose_(std::move(whose)),
      bucket_(kPerSecond, kBurst, MonotonicNanoseconds()),
      buffer_(kReadBytes) {}

void OutputLines::Add(std::string_view bytes, uint64_t now_ns) {
  while (!bytes.empty()) {
    const size_t room = kMaxLineBytes - line_.size();
    const size_t end = bytes.substr(0, room).find('\n');
    line_.append(bytes.substr(0, std::min(end, room)));
    bytes.remove_prefix(std::min(end == std::string_view::npos ? room : end + 1, bytes.size()));
    if (end == std::string_view::npos && line_.size() < kMaxLineBytes) return;
    WriteLine(std::exchange(line_, {}), now_ns);
  }
}

void OutputLines::End(uint64_t now_ns) {
  if (!line_.empty()) WriteLine(std::exchange(line_, {}), now_ns);
  TellLeftOut();
}

bool OutputLines::ReadSome(int fd, uint64_t now_ns) {
  const ssize_t got = read(fd, buffer_.data(), buffer_.size());
  if (got > 0) Add({buffer_.data(), static_cast<size_t>(got)}, now_ns);
  read_all_ = got < static_cast<ssize_t>(buffer_.size());
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

void OutputLines::WriteLine(std::string_view line, uint64_t now_ns) {
  if (!bucket_.TryTake(now_ns)) {
    ++left_out_;
    return;
  }
  TellLeftOut();
  std::string text(line);
  std::replace(text.begin(), text.end(), '\t', ' ');
  log::Write(spdlog::level::info, {.kind = kKind},
             absl::StrCat(whose_, ": ", OneLine(text, kMaxLineBytes)));
}

void OutputLines::TellLeftOut() {
  const uint64_t lines = std::exchange(left_out_, 0);
  if (lines == 0) return;
  log::Write(spdlog::level::warn, {.kind = "lines_left_out"},
             absl::StrCat(lines, " lines of ", whose_, " have come too fast and are not here"));
}

// ---------------------------------------------------------------- on the loop

// Outlives its object, for the handlers that are queued.
struct ProgramOutput::State {
  State(boost::asio::io_context& loop, FileDescriptor reader, std::string whose)
      : descriptor(loop, reader.Release()), pause(loop), lines(std::move(whose)) {}

  boost::asio::posix::stream_descriptor descriptor;
  boost::asio::steady_timer pause;
  OutputLines lines;
};

ProgramOutput::ProgramOutput(boost::asio::io_context& loop, FileDescriptor reader,
                             std::string whose)
    : state_(std::make_shared<State>(loop, std::move(reader), std::move(whose))) {
  Await(state_);
}

ProgramOutput::~ProgramOutput() { Finish(); }

void ProgramOutput::Await(const std::shared_ptr<State>& state) {
  state->descriptor.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [state](const boost::system::error_code& error) {
        if (error || !state->descriptor.is_open()) return;
        if (!state->lines.ReadSome(state->descriptor.native_handle(), MonotonicNanoseconds())) {
          return Finish(*state);
        }
        if (state->lines.read_all()) return Await(state);
        state->pause.expires_after(kPause);
        state->pause.async_wait([state](const boost::system::error_code& stopped) {
          if (!stopped && state->descriptor.is_open()) Await(state);
        });
      });
}

void ProgramOutput::Finish() { Finish(*state_); }

void ProgramOutput::Finish(State& state) {
  if (!state.descriptor.is_open()) return;
  const uint64_t now = MonotonicNanoseconds();
  for (int i = 0; i < kMostReadsAtEnd; ++i) {
    if (!state.lines.ReadSome(state.descriptor.native_handle(), now) || state.lines.read_all()) {
      break;
    }
  }
  state.lines.End(now);
  state.pause.cancel();
  state.descriptor.close();
}

}  // namespace baton::keeper
