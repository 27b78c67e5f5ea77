#include "supervisor/config/down_reason.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "lib/base/file_descriptor.h"
#include "lib/text/text.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

constexpr size_t kMaxReasonBytes = 1024;
// Enough to read the last character whole. If it does not fit, it is left out, not shown as
// damaged.
constexpr size_t kReadBytes = kMaxReasonBytes + 3;

}  // namespace

void SetDownReason(const std::string& state_dir, const std::string& service, std::string_view why) {
  const std::string path = DownReasonPath(state_dir, service);
  if (why.empty()) {
    (void)unlink(path.c_str());
    return;
  }
  std::string line(why);
  std::replace(line.begin(), line.end(), '\n', ' ');
  (void)ReplaceFile(path, line + '\n');
}

std::string DownReason(const std::string& state_dir, const std::string& service) {
  // Event loops call this, and something else may have the name. Opening a FIFO would wait until
  // somebody writes, and opening a device may do anything.
  const FileDescriptor file(open(DownReasonPath(state_dir, service).c_str(),
                                 O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY));
  struct stat status = {};
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  char bytes[kReadBytes];
  size_t size = 0;
  while (size < sizeof(bytes)) {
    const ssize_t got = read(file.get(), bytes + size, sizeof(bytes) - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  const std::string_view text(bytes, size);
  return OneLine(text.substr(0, text.find('\n')), kMaxReasonBytes);
}

}  // namespace baton
