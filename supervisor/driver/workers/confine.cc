#include "supervisor/driver/workers/confine.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"

namespace baton::driver_process {
namespace {

absl::Status CloseRange(unsigned int first, unsigned int last) {
  if (first > last || syscall(SYS_close_range, first, last, 0) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "close_range");
}

bool IsOurs(const Identity& identity) {
  return identity.uid.value_or(geteuid()) == geteuid() &&
         identity.gid.value_or(getegid()) == getegid();
}

absl::Status TakeIdentity(const Identity& identity) {
  if (!identity.uid && !identity.gid) return absl::OkStatus();
  // Otherwise the process would keep the driver's groups. A driver without CAP_SETGID cannot
  // drop them, and may still name itself.
  if (setgroups(0, nullptr) != 0 && !(errno == EPERM && IsOurs(identity))) {
    return ErrnoStatus(errno,
                       "setgroups: batond cannot change its user. Let native.uid and native.gid be "
                       "its own, and leave --broker-user out, or run it as root");
  }
  if (identity.gid && setresgid(*identity.gid, *identity.gid, *identity.gid) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot become gid ", *identity.gid));
  }
  if (identity.uid && setresuid(*identity.uid, *identity.uid, *identity.uid) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot become uid ", *identity.uid));
  }
  return absl::OkStatus();
}

// A process without capabilities may use priorities up to the limit, and cannot raise it again.
absl::Status LimitPriority(int priority) {
  rlimit limit = {};
  const auto most = static_cast<rlim_t>(priority);
  if (getrlimit(RLIMIT_RTPRIO, &limit) != 0) return ErrnoStatus(errno, "getrlimit");
  rlimit wanted = {most, most};
  if (setrlimit(RLIMIT_RTPRIO, &wanted) == 0) return absl::OkStatus();
  wanted.rlim_cur = wanted.rlim_max = std::min(most, limit.rlim_max);
  return setrlimit(RLIMIT_RTPRIO, &wanted) == 0 ? absl::OkStatus()
                                                : ErrnoStatus(errno, "setrlimit of RLIMIT_RTPRIO");
}

absl::Status DropCapabilities(uint32_t kept) {
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) {
    return ErrnoStatus(errno, "clearing the ambient capabilities");
  }
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return ErrnoStatus(errno, "capget");
  kept &= sets[0].permitted;
  sets[0] = {kept, kept, 0};
  sets[1] = {};
  if (syscall(SYS_capset, &header, sets) != 0) return ErrnoStatus(errno, "capset");
  // Now no executable gives rights back: neither one with capabilities or another user's rights
  // nor, in a root process, any other.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoStatus(errno, "no_new_privs");
  return absl::OkStatus();
}

}  // namespace

absl::Status KeepOnly(std::vector<int> kept) {
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) return ErrnoStatus(errno, "/dev/null");
  if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return ErrnoStatus(errno, "standard output");
  std::erase_if(kept, [](int fd) { return fd <= STDERR_FILENO; });
  std::sort(kept.begin(), kept.end());
  unsigned int first = STDERR_FILENO + 1;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned int>(fd);
    if (number > first) BATON_RETURN_IF_ERROR(CloseRange(first, number - 1));
    first = number + 1;
  }
  return CloseRange(first, ~0u);
}

void ForgetKeepersVariables() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (IsForOneProcess(text)) names.push_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
}

absl::Status Confine(const Identity& identity) {
  BATON_RETURN_IF_ERROR(LimitPriority(identity.realtime_priority));
  if ((identity.may_listen || identity.may_hurry) && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) {
    return ErrnoStatus(errno, "keeping capabilities");
  }
  BATON_RETURN_IF_ERROR(TakeIdentity(identity));
  static_assert(CAP_NET_BIND_SERVICE < 32 && CAP_SYS_NICE < 32);
  return DropCapabilities((identity.may_listen ? CAP_TO_MASK(CAP_NET_BIND_SERVICE) : 0) |
                          (identity.may_hurry ? CAP_TO_MASK(CAP_SYS_NICE) : 0));
}

}  // namespace baton::driver_process
