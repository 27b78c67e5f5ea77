#include "supervisor/driver/workers/output_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/log/log.h"
#include "lib/text/text.h"

namespace baton::driver_process {

absl::StatusOr<Pipe> MakeOutputPipe() {
  BATON_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  if (fcntl(pipe.reading.get(), F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "O_NONBLOCK");
  return pipe;
}

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

}  // namespace baton::driver_process
