#include "supervisor/nic_check/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::nic_check {

absl::StatusOr<pid_t> Fork(const std::function<absl::Status()>& run) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(getppid() == parent && run().ok() ? 0 : 1);
}

absl::Status AwaitSuccess(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return ErrnoStatus(errno, "waitpid");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the forked process has failed (wait status ", status, ")"));
}

absl::Status Kill(pid_t child) {
  int status = 0;
  if (kill(child, SIGKILL) != 0 || waitpid(child, &status, 0) != child) {
    return ErrnoStatus(errno, "cannot kill a driver");
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a driver had ended by itself (wait status ", status, ")"));
}

void PassTime(uint64_t nanoseconds) {
  const uint64_t end = MonotonicNanoseconds() + nanoseconds;
  while (MonotonicNanoseconds() < end) continue;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Make(size_t bytes) {
  FileDescriptor fd(memfd_create("nic-check", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot make a memfd of ", bytes, " bytes"));
  }
  void* const begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (begin == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("cannot map ", bytes, " bytes"));
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(fd), static_cast<uint8_t*>(begin), bytes));
}

SharedMemory::~SharedMemory() { munmap(begin_, bytes_); }

void* SharedMemory::Allocate(size_t bytes, size_t alignment) {
  const size_t at = (used_ + alignment - 1) & ~(alignment - 1);
  if (bytes > bytes_ || at > bytes_ - bytes) return nullptr;
  used_ = at + bytes;
  return begin_ + at;
}

}  // namespace baton::nic_check
