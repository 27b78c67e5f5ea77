// Runs a process from one system call or instruction to the next, by ptrace(2).
#ifndef TESTS_CRASH_TRACED_PROCESS_H_
#define TESTS_CRASH_TRACED_PROCESS_H_

#include <sys/types.h>
#include <sys/user.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace baton::crash {

// All of these are for the thread that traces `process`: the kernel takes orders from no other.

// ptrace(2) with a request that needs no address.
absl::Status Trace(int request, pid_t process, uintptr_t data);
// Waits until the process has stopped or ended. It waits for no other child, whose end somebody
// else waits for.
absl::Status AwaitStop(pid_t process, int* status);
// Runs it to the next entry into a system call, or exit from one. Needs PTRACE_O_TRACESYSGOOD.
absl::Status RunToCall(pid_t process);
// Executes instructions; a system call is one.
absl::Status Step(pid_t process, uint64_t instructions);

// Returns whether the status of a stop is of this PTRACE_EVENT_.
bool IsEvent(int status, int event);
// Returns the signal that the process is about to get, which goes on to it; 0: it has stopped for
// another reason.
int SignalIn(int status);
user_regs_struct RegistersOf(pid_t process);
// Copies its memory. False: it is not there.
bool ReadFrom(pid_t process, uintptr_t from, void* to, size_t bytes);

}  // namespace baton::crash

#endif  // TESTS_CRASH_TRACED_PROCESS_H_
