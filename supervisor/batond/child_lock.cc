#include "supervisor/batond/child_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton {
namespace {

// The kernel cuts a longer name.
constexpr size_t kNameBytes = 15;

bool Runs(pid_t process, const std::string& program) {
  std::string name;
  std::getline(std::ifstream(absl::StrCat("/proc/", process, "/comm")), name);
  return name == program.substr(program.rfind('/') + 1).substr(0, kNameBytes);
}

bool IsSameFile(int a, const std::string& path) {
  struct stat of_a = {}, of_path = {};
  return fstat(a, &of_a) == 0 && lstat(path.c_str(), &of_path) == 0 &&
         of_a.st_dev == of_path.st_dev && of_a.st_ino == of_path.st_ino;
}

}  // namespace

absl::Status ChildLock::Take() {
  if (file_) return absl::OkStatus();
  FileDescriptor file(open(path_.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) {
    return ErrnoStatus(errno,
                       absl::StrCat("the state directory is not writable: cannot open ", path_));
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("flock of ", path_));
    return absl::UnavailableError(absl::StrCat("processes of a former batond still hold ", path_,
                                               "; find them with: fuser ", path_));
  }
  file_ = std::move(file);
  return absl::OkStatus();
}

// flock succeeds on a descriptor of the child's open file, which has the lock already. On any other
// it fails while the child has the lock.
absl::Status ChildLock::Receive(FileDescriptor descriptor) {
  if (!descriptor || !IsSameFile(descriptor.get(), path_) ||
      flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("the descriptor that came does not have the lock ", path_));
  }
  file_ = std::move(descriptor);
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> ChildLock::OpenForNaming() const {
  FileDescriptor file(open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return ErrnoStatus(errno, absl::StrCat("cannot write ", path_));
  return file;
}

absl::Status ChildLock::NameHolder(size_t bytes) {
  BATON_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForNaming());
  std::string text = absl::StrCat(getpid(), "\n");
  text.resize(std::max(text.size(), bytes), '\n');
  const auto size = static_cast<ssize_t>(text.size());
  if (pwrite(file.get(), text.data(), text.size(), 0) == size && ftruncate(file.get(), size) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("cannot write ", path_));
}

// Another process may have the number by now, so the program is checked once the pidfd is open.
std::optional<SpawnedProcess> ChildLock::Holder(const std::vector<std::string>& programs) const {
  pid_t pid = 0;
  std::ifstream(path_) >> pid;
  if (pid <= 0) return std::nullopt;
  SpawnedProcess holder{pid, OpenPidfd(pid).value_or(FileDescriptor())};
  const bool runs = std::any_of(programs.begin(), programs.end(),
                                [pid](const std::string& program) { return Runs(pid, program); });
  if (!holder.pidfd || !runs) return std::nullopt;
  return holder;
}

}  // namespace baton
