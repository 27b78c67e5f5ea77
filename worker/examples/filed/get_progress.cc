#include "worker/examples/filed/get_progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/text/text.h"

namespace baton::filed {
namespace {

constexpr uint32_t kBarCells = 20;
constexpr uint32_t kDefaultColumns = 80;
constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kLine{5};
constexpr char kEraseLine[] = "\r\033[K";

uint32_t ColumnsOf(int terminal) {
  winsize size = {};
  const bool known = ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kDefaultColumns;
}

// A failure is ignored: the download does not depend on what is shown.
void Write(int fd, const std::string& text) { (void)!write(fd, text.data(), text.size()); }

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string ProgressLine(const Totals& totals, double seconds, std::string_view path,
                         uint32_t columns) {
  const uint64_t found = std::max<uint64_t>(totals.bytes_found, 1);
  const uint64_t done = std::min(totals.bytes_done, found);
  const double part = static_cast<double>(done) / static_cast<double>(found);
  const auto cells = static_cast<size_t>(part * kBarCells);
  const uint64_t fetched = totals.bytes_done - std::min(totals.bytes_kept, totals.bytes_done);
  const double rate = seconds > 0 ? static_cast<double>(fetched) / seconds : 0;
  std::string line = absl::StrFormat(
      "[%s%s] %3d%% %s of %s, %s/s, %d of %d files", std::string(cells, '#'),
      std::string(kBarCells - cells, '.'), static_cast<int>(part * 100),
      FormatBytes(totals.bytes_done), FormatBytes(totals.bytes_found),
      FormatBytes(static_cast<uint64_t>(rate)), totals.files_done, totals.files_found);
  if (totals.failed > 0) absl::StrAppend(&line, ", ", totals.failed, " failed");
  absl::StrAppend(&line, ": ");
  // A character of UTF-8 that is cut becomes '?'; wide ones may make the line longer than thought.
  if (line.size() >= columns) return line.substr(0, columns);
  return line + OneLine(path, columns - line.size());
}

GetProgress::GetProgress(int fd, bool quiet) : fd_(fd), quiet_(quiet), terminal_(isatty(fd) == 1) {}

double GetProgress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - begun_).count();
}

void GetProgress::Update(const Totals& totals, std::string_view path) {
  const Clock::time_point now = Clock::now();
  if (quiet_ || now - shown_ < (terminal_ ? kRedraw : Clock::duration(kLine))) return;
  shown_ = now;
  if (!terminal_) {
    constexpr uint32_t kLongest = 400;
    return Write(fd_, ProgressLine(totals, seconds(), path, kLongest) + "\n");
  }
  drawn_ = true;
  // The last column makes some terminals go on to the next line.
  Write(fd_, kEraseLine + ProgressLine(totals, seconds(), path, ColumnsOf(fd_) - 1));
}

void GetProgress::Clear() {
  if (drawn_) Write(fd_, kEraseLine);
  drawn_ = false;
}

}  // namespace baton::filed
