#include "supervisor/keeper/lock_holder.h"

#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/arena/atomic_access.h"

namespace baton::keeper {
namespace {

// "<name>:\t<number>" of a thread's status; -1: there is none.
pid_t StatusOf(pid_t thread, absl::string_view name) {
  std::ifstream file(absl::StrCat("/proc/", thread, "/status"));
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(":\t "), absl::SkipEmpty());
    pid_t number = -1;
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return -1;
}

// None: this process may not see it.
std::optional<bool> Maps(pid_t pid, int file) {
  struct stat info = {};
  if (fstat(file, &info) != 0) return std::nullopt;
  const std::string device = absl::StrFormat("%02x:%02x", major(info.st_dev), minor(info.st_dev));
  const std::string inode = absl::StrCat(info.st_ino);
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  if (!maps) return std::nullopt;
  for (std::string line; std::getline(maps, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() > 4 && words[3] == device && words[4] == inode) return true;
  }
  return false;
}

}  // namespace

std::optional<LockHolder> FindLockHolder(const arena::Arena& arena, uint32_t slot, uid_t uid,
                                         const std::vector<pid_t>& others) {
  for (const arena::ThreadLock& lock : arena.worker(slot).thread_locks) {
    const uint32_t word = arena::LoadAcquire(lock.futex);
    const auto thread = static_cast<pid_t>(word & FUTEX_TID_MASK);
    if (thread == 0 || (word & FUTEX_OWNER_DIED) != 0) continue;
    LockHolder holder;
    holder.pid = StatusOf(thread, "Tgid");
    if (holder.pid <= 0 || holder.pid == getpid() ||
        std::find(others.begin(), others.end(), holder.pid) != others.end()) {
      continue;
    }
    // Before it is looked at: what is seen then is this process's.
    holder.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, holder.pid, 0)));
    if (!holder.pidfd) continue;
    const bool is_of_service =
        Maps(holder.pid, arena.worker_log_fd())
            .value_or(uid != geteuid() && StatusOf(holder.pid, "Uid") == static_cast<pid_t>(uid));
    if (is_of_service) return holder;
  }
  return std::nullopt;
}

}  // namespace baton::keeper
