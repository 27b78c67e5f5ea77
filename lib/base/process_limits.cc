#include "lib/base/process_limits.h"

#include <dirent.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton {
namespace {

bool MayLockWithoutLimit() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return false;
  return (sets[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

// Rounds up, so that a limit of what is shown is enough.
std::string Mebibytes(uint64_t bytes) {
  return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MiB");
}

}  // namespace

void RaiseMemlockLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_MEMLOCK, &limit);
}

absl::Status CheckMemlockLimit(uint64_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= bytes || MayLockWithoutLimit()) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "RLIMIT_MEMLOCK is ", limit.rlim_cur >> 20, " MiB, ", Mebibytes(bytes),
      " needed to register memory: set LimitMEMLOCK=infinity in batond's unit, or ulimit -l"));
}

absl::Status UseRealtimePriority(int priority) {
  sched_param parameters = {};
  parameters.sched_priority = priority;
  if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &parameters) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("real-time priority ", priority,
                                         " (needs CAP_SYS_NICE or RLIMIT_RTPRIO, LimitRTPRIO= of "
                                         "a systemd unit)"));
}

int CountThreads() {
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), closedir);
  if (!threads) return 0;
  int count = 0;
  while (const dirent* const entry = readdir(threads.get())) count += entry->d_name[0] != '.';
  return count;
}

}  // namespace baton
