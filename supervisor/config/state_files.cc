#include "supervisor/config/state_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/text/text.h"

namespace baton {
namespace {

absl::Status MakeDirectory(const std::string& path) {
  constexpr mode_t kPassable = 0711;
  if (mkdir(path.c_str(), kPassable) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("mkdir ", path));
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is in the way: it is no directory of this user's; remove it"));
  }
  // chmod, so that the umask does not matter.
  if (chmod(path.c_str(), kPassable) != 0) return ErrnoStatus(errno, absl::StrCat("chmod ", path));
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, std::string_view contents) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return ErrnoStatus(errno, absl::StrCat("open ", path));
  while (!contents.empty()) {
    const ssize_t written = write(file.get(), contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    contents.remove_prefix(static_cast<size_t>(written));
  }
  // Before the rename: otherwise an empty file could have taken the former's place after a loss of
  // power.
  if (fsync(file.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path));
  return absl::OkStatus();
}

// Makes the name survive a loss of power.
absl::Status SynchronizeDirectoryOf(const std::string& path) {
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  const FileDescriptor file(
      open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file || fsync(file.get()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("fsync of the directory of ", path));
  }
  return absl::OkStatus();
}

constexpr size_t kMaxReasonBytes = 1024;
// Enough to read the last character whole. If it does not fit, it is left out, not shown as
// damaged.
constexpr size_t kReadBytes = kMaxReasonBytes + 3;

}  // namespace

absl::Status LinkSocket(const std::string& socket, const std::string& link) {
  BATON_RETURN_IF_ERROR(MakeDirectory(link.substr(0, link.rfind('/'))));
  const std::string made = link + ".new";
  unlink(made.c_str());
  if (::link(socket.c_str(), made.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("link ", socket, " to ", made));
  }
  if (rename(made.c_str(), link.c_str()) == 0) return absl::OkStatus();
  absl::Status status = ErrnoStatus(errno, absl::StrCat("rename ", made, " to ", link));
  unlink(made.c_str());
  return status;
}

absl::Status ReplaceFile(const std::string& path, std::string_view contents) {
  const std::string next = path + ".new";
  absl::Status status = WriteFile(next, contents);
  if (status.ok() && std::rename(next.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("rename ", next));
  }
  if (!status.ok()) {
    (void)unlink(next.c_str());
    return status;
  }
  return SynchronizeDirectoryOf(path);
}

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
