#include "supervisor/control/sandbox.h"

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/status.h"

namespace baton {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "name this architecture's AUDIT_ARCH_ here"
#endif
// The filter loads the low half of an argument, which is first.
static_assert(std::endian::native == std::endian::little);

#ifdef BATON_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// socket, socketpair, clone and tgkill are allowed by their arguments, too.
constexpr int kAllowed[] = {
    // Files: certificates, the audit trail, what /proc says of Baton's processes.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_openat,
    SYS_close,
    SYS_close_range,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_lseek,
    SYS_ftruncate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_flock,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_renameat,
    SYS_renameat2,
    SYS_unlinkat,
    SYS_mkdirat,
    SYS_umask,
    SYS_getcwd,
    SYS_fcntl,
    SYS_ioctl,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_memfd_create,
    // Memory.
    SYS_brk,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_membarrier,
    // Sockets.
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_connect,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_setsockopt,
    SYS_getsockopt,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_recvmmsg,
    // Waiting.
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_futex,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_restart_syscall,
    SYS_setitimer,  // alarm(3) uses it where there is no call of that name
    // Threads, and this process.
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_rseq,
    SYS_set_tid_address,
    SYS_sched_yield,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_sched_getaffinity,
    SYS_getcpu,
    SYS_exit,
    SYS_exit_group,
    SYS_gettid,
    SYS_getpid,
    SYS_getppid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getgroups,
    SYS_getrandom,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrusage,
    SYS_prlimit64,
    SYS_prctl,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
#if defined(__x86_64__)
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_rename,
    SYS_unlink,
    SYS_mkdir,
    SYS_chmod,
    SYS_dup2,
    SYS_pipe,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_time,
    SYS_getrlimit,
    SYS_arch_prctl,
    SYS_alarm,
#endif
};

constexpr uint32_t kNamespaces = CLONE_NEWCGROUP | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS |
                                 CLONE_NEWPID | CLONE_NEWUSER | CLONE_NEWUTS;

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW;
constexpr uint32_t kAbsent = SECCOMP_RET_ERRNO | ENOSYS;
constexpr uint32_t kForbidden = SECCOMP_RET_ERRNO | EPERM;

class Filter {
 public:
  Filter() {
    Load(offsetof(seccomp_data, arch));
    // Another architecture's numbers mean other calls.
    Jump(BPF_JEQ, kArchitecture, 1, 0);
    Return(SECCOMP_RET_KILL_PROCESS);
    Load(offsetof(seccomp_data, nr));
    for (const int call : kAllowed) {
      Jump(BPF_JEQ, static_cast<uint32_t>(call), 0, 1);
      Return(kAllow);
    }
    for (const int call : {SYS_socket, SYS_socketpair}) {
      Jump(BPF_JEQ, static_cast<uint32_t>(call), 0, 7);
      Load(offsetof(seccomp_data, args[0]));
      Jump(BPF_JEQ, AF_UNIX, 4, 0);
      Jump(BPF_JEQ, AF_INET, 3, 0);
      Jump(BPF_JEQ, AF_INET6, 2, 0);
      Jump(BPF_JEQ, AF_NETLINK, 1, 0);
      Return(kForbidden);
      Return(kAllow);
    }
    // Allows new threads of this process. clone3 has its flags in memory, which the filter cannot
    // see, so it is absent, and the C library uses clone.
    Jump(BPF_JEQ, SYS_clone, 0, 5);
    Load(offsetof(seccomp_data, args[0]));
    Jump(BPF_JSET, kNamespaces, 2, 0);
    Jump(BPF_JSET, CLONE_THREAD, 0, 1);
    Return(kAllow);
    Return(kForbidden);
    // For abort(3): threads of this process only.
    Jump(BPF_JEQ, SYS_tgkill, 0, 4);
    Load(offsetof(seccomp_data, args[0]));
    Jump(BPF_JEQ, static_cast<uint32_t>(getpid()), 0, 1);
    Return(kAllow);
    Return(kForbidden);
    Return(kAbsent);
  }

  absl::Status Install() {
    const sock_fprog program = {static_cast<unsigned short>(code_.size()), code_.data()};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "the filter of system calls (CONFIG_SECCOMP_FILTER)");
  }

 private:
  void Load(size_t offset) {
    code_.push_back({BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<uint32_t>(offset)});
  }
  void Jump(uint16_t condition, uint32_t value, uint8_t if_true, uint8_t if_false) {
    code_.push_back({static_cast<uint16_t>(BPF_JMP | condition | BPF_K), if_true, if_false, value});
  }
  void Return(uint32_t action) { code_.push_back({BPF_RET | BPF_K, 0, 0, action}); }

  std::vector<sock_filter> code_;
};

absl::Status DropCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 ||
      syscall(SYS_capset, &header, none) != 0) {
    return ErrnoStatus(errno, "giving up capabilities");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EnterSandbox() {
  BATON_RETURN_IF_ERROR(DropCapabilities());
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoStatus(errno, "no_new_privs");
  if (kSanitized) return absl::OkStatus();
  return Filter().Install();
}

}  // namespace baton
