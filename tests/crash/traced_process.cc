#include "tests/crash/traced_process.h"

#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(20);
constexpr uint64_t kSoonNanoseconds = 100'000;
constexpr timespec kLook = {0, 50'000};
constexpr int kCallStop = SIGTRAP | 0x80;  // PTRACE_O_TRACESYSGOOD

absl::Status Ended(pid_t process) {
  return absl::InternalError(absl::StrCat("process ", process, " has ended by itself"));
}

}  // namespace

absl::Status Trace(int request, pid_t process, uintptr_t data) {
  if (ptrace(static_cast<__ptrace_request>(request), process, nullptr, data) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("ptrace(", request, ") of process ", process));
}

// Looks without a pause at first: there are thousands of stops, and each comes soon.
absl::Status AwaitStop(pid_t process, int* status) {
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

absl::Status RunToCall(pid_t process) {
  int status = 0;
  do {
    BATON_RETURN_IF_ERROR(Trace(PTRACE_SYSCALL, process, SignalIn(status)));
    BATON_RETURN_IF_ERROR(AwaitStop(process, &status));
    if (!WIFSTOPPED(status)) return Ended(process);
  } while (WSTOPSIG(status) != kCallStop);
  return absl::OkStatus();
}

absl::Status Step(pid_t process, uint64_t instructions) {
  for (uint64_t i = 0; i < instructions; ++i) {
    BATON_RETURN_IF_ERROR(Trace(PTRACE_SINGLESTEP, process, 0));
    int status = 0;
    BATON_RETURN_IF_ERROR(AwaitStop(process, &status));
    if (!WIFSTOPPED(status)) return Ended(process);
  }
  return absl::OkStatus();
}

bool IsEvent(int status, int event) { return status >> 8 == (SIGTRAP | event << 8); }

int SignalIn(int status) {
  const int signal = WSTOPSIG(status);
  return status >> 16 != 0 || signal == SIGTRAP || signal == kCallStop ? 0 : signal;
}

user_regs_struct RegistersOf(pid_t process) {
  user_regs_struct registers = {};
  (void)ptrace(PTRACE_GETREGS, process, nullptr, &registers);
  return registers;
}

bool ReadFrom(pid_t process, uintptr_t from, void* to, size_t bytes) {
  const iovec ours = {to, bytes}, its = {reinterpret_cast<void*>(from), bytes};
  return process_vm_readv(process, &ours, 1, &its, 1, 0) == static_cast<ssize_t>(bytes);
}

}  // namespace baton::crash
