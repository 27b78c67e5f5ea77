#include "tests/demo/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::demo {
namespace {

constexpr size_t kLeastColumns = 60;
constexpr size_t kLeastRows = 10;

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// locale(7): the first of these that is set decides.
bool IsUtf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(Environment(name));
    if (value.empty()) continue;
    return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return false;
}

winsize SizeOf(int fd) {
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  return size;
}

}  // namespace

std::optional<Terminal> Terminal::Open(int fd) {
  const std::string type = Environment("TERM");
  const winsize size = SizeOf(fd);
  if (isatty(fd) == 0 || type.empty() || type == "dumb" || size.ws_col < kLeastColumns ||
      size.ws_row < kLeastRows) {
    return std::nullopt;
  }
  return Terminal(fd, Environment("NO_COLOR").empty(), IsUtf8());
}

FrameLook Terminal::look() const {
  const winsize size = SizeOf(fd_);
  return {.columns = std::max<size_t>(size.ws_col, 2) - 1,
          .rows = std::max<size_t>(size.ws_row, 2) - 1,
          .colour = colour_,
          .unicode = unicode_};
}

void Terminal::Draw(const std::string& frame, const FrameLook& look) {
  // In a terminal of another width the lines of the former frame may be where they were not drawn.
  if (columns_ != look.columns || lines_ > look.rows) Leave();
  columns_ = look.columns;
  std::string bytes = lines_ > 0 ? absl::StrCat("\r\x1b[", lines_, "A") : "\r";
  lines_ = 0;
  for (size_t start = 0, end; (end = frame.find('\n', start)) != std::string::npos;
       start = end + 1, ++lines_) {
    absl::StrAppend(&bytes, frame.substr(start, end - start), "\x1b[K\r\n");
  }
  bytes += "\x1b[J";
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t count = write(fd_, bytes.data() + written, bytes.size() - written);
    if (count <= 0) return;  // the terminal is gone, or a signal came: the next frame is whole
    written += static_cast<size_t>(count);
  }
}

}  // namespace baton::demo
