#include "tests/crash/traced_keeper.h"

#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "tests/harness/patience.h"

namespace baton::crash {
namespace {

constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(20);
constexpr uint64_t kSoonNanoseconds = 100'000;
constexpr timespec kLook = {0, 50'000};
constexpr int kCallStop = SIGTRAP | 0x80;  // PTRACE_O_TRACESYSGOOD
constexpr size_t kReceivedBytes = 256;

absl::Status Trace(int request, pid_t process, uintptr_t data) {
  if (ptrace(static_cast<__ptrace_request>(request), process, nullptr, data) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("ptrace(", request, ") of process ", process));
}

bool IsEvent(int status, int event) { return status >> 8 == (SIGTRAP | event << 8); }

// The signal that the process is about to get, which goes on to it; 0: it has stopped for another
// reason.
int SignalIn(int status) {
  const int signal = WSTOPSIG(status);
  return status >> 16 != 0 || signal == SIGTRAP || signal == kCallStop ? 0 : signal;
}

user_regs_struct RegistersOf(pid_t process) {
  user_regs_struct registers = {};
  (void)ptrace(PTRACE_GETREGS, process, nullptr, &registers);
  return registers;
}

bool Read(pid_t process, uintptr_t from, void* to, size_t bytes) {
  const iovec ours = {to, bytes}, its = {reinterpret_cast<void*>(from), bytes};
  return process_vm_readv(process, &ours, 1, &its, 1, 0) == static_cast<ssize_t>(bytes);
}

}  // namespace

TracedKeeper::~TracedKeeper() { LetGo(); }

// Does not wait for any child, which would take others' ends. Looks without a pause at first: there
// are thousands of stops, and each comes soon.
absl::Status TracedKeeper::Stopped(pid_t process, int* status) const {
  const uint64_t begin = MonotonicNanoseconds();
  const auto patience = static_cast<uint64_t>(harness::Patient(kPatience).count());
  pid_t changed;
  while ((changed = waitpid(process, status, __WALL | WNOHANG)) == 0) {
    const uint64_t waited = MonotonicNanoseconds() - begin;
    if (waited > patience) {
      return absl::DeadlineExceededError(absl::StrCat("process ", process, " does not stop"));
    }
    if (waited < kSoonNanoseconds) {
      sched_yield();
    } else {
      nanosleep(&kLook, nullptr);
    }
  }
  if (changed != process) return ErrnoStatus(errno, absl::StrCat("waitpid of ", process));
  return absl::OkStatus();
}

absl::Status TracedKeeper::KillAndAwaitNext() {
  // Before the keeper's end, after which the driver soon starts the next. The keeper inherits it.
  BATON_RETURN_IF_ERROR(Trace(PTRACE_SEIZE, driver_, PTRACE_O_TRACEFORK));
  BATON_RETURN_IF_ERROR(Kill());
  BATON_RETURN_IF_ERROR(DriversFork());
  int status = 0;
  BATON_RETURN_IF_ERROR(Stopped(keeper_, &status));
  stopped_ = true;
  BATON_RETURN_IF_ERROR(Trace(PTRACE_SETOPTIONS, keeper_,
                              PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
  BATON_RETURN_IF_ERROR(Trace(PTRACE_CONT, keeper_, 0));
  BATON_RETURN_IF_ERROR(Stopped(keeper_, &status));
  if (IsEvent(status, PTRACE_EVENT_EXEC)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("process ", keeper_, " is no program: ", status));
}

absl::Status TracedKeeper::Kill() {
  if (kill(keeper_, SIGKILL) != 0) return ErrnoStatus(errno, "kill");
  // The driver reaps a traced process after its tracer.
  int status = 0;
  if (std::exchange(stopped_, false)) return Stopped(keeper_, &status);
  return absl::OkStatus();
}

absl::Status TracedKeeper::DriversFork() {
  for (;;) {
    int status = 0;
    BATON_RETURN_IF_ERROR(Stopped(driver_, &status));
    if (!WIFSTOPPED(status)) return absl::InternalError("the driver has ended");
    if (IsEvent(status, PTRACE_EVENT_FORK)) {
      unsigned long child = 0;
      BATON_RETURN_IF_ERROR(
          Trace(PTRACE_GETEVENTMSG, driver_, reinterpret_cast<uintptr_t>(&child)));
      keeper_ = static_cast<pid_t>(child);
      return Trace(PTRACE_DETACH, driver_, 0);
    }
    BATON_RETURN_IF_ERROR(Trace(PTRACE_CONT, driver_, SignalIn(status)));
  }
}

absl::Status TracedKeeper::RunToCall() {
  int status = 0;
  do {
    BATON_RETURN_IF_ERROR(Trace(PTRACE_SYSCALL, keeper_, SignalIn(status)));
    BATON_RETURN_IF_ERROR(Stopped(keeper_, &status));
    if (!WIFSTOPPED(status)) return absl::InternalError("the keeper has ended by itself");
  } while (WSTOPSIG(status) != kCallStop);
  return absl::OkStatus();
}

absl::Status TracedKeeper::Step(uint64_t instructions) {
  for (uint64_t i = 0; i < instructions; ++i) {
    BATON_RETURN_IF_ERROR(Trace(PTRACE_SINGLESTEP, keeper_, 0));
    int status = 0;
    BATON_RETURN_IF_ERROR(Stopped(keeper_, &status));
    if (!WIFSTOPPED(status)) return absl::InternalError("the keeper has ended by itself");
  }
  return absl::OkStatus();
}

void TracedKeeper::LetGo() {
  if (std::exchange(stopped_, false)) Trace(PTRACE_DETACH, keeper_, 0).IgnoreError();
}

long TracedKeeper::call() const { return static_cast<long>(RegistersOf(keeper_).orig_rax); }

std::string TracedKeeper::Received() const {
  const user_regs_struct registers = RegistersOf(keeper_);
  const auto got = static_cast<long>(registers.rax);
  msghdr header = {};
  iovec part = {};
  if (registers.orig_rax != SYS_recvmsg || got <= 0 ||
      !Read(keeper_, registers.rsi, &header, sizeof(header)) ||
      !Read(keeper_, reinterpret_cast<uintptr_t>(header.msg_iov), &part, sizeof(part))) {
    return "";
  }
  std::string received(std::min<size_t>({static_cast<size_t>(got), part.iov_len, kReceivedBytes}),
                       '\0');
  if (!Read(keeper_, reinterpret_cast<uintptr_t>(part.iov_base), received.data(),
            received.size())) {
    return "";
  }
  return received;
}

}  // namespace baton::crash
