// A keeper that runs to a chosen system call or instruction of its taking over, by ptrace.
#ifndef TESTS_CRASH_TRACED_KEEPER_H_
#define TESTS_CRASH_TRACED_KEEPER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace baton::crash {

// Thread-compatible: the kernel takes orders from the thread that has called ReplaceBy alone.
class TracedKeeper {
 public:
  // `driver`: the process that starts keepers, which it does with its main thread. `keeper`: the
  // one that it has.
  TracedKeeper(pid_t driver, pid_t keeper) : driver_(driver), keeper_(keeper) {}
  ~TracedKeeper();
  TracedKeeper(const TracedKeeper&) = delete;
  TracedKeeper& operator=(const TracedKeeper&) = delete;

  // Kills the present keeper with SIGKILL. The next one has executed no instruction of its program.
  absl::Status KillAndAwaitNext();

  // These need a keeper that KillAndAwaitNext has stopped.
  // Runs its main thread to the next entry into a system call, or exit from one.
  absl::Status RunToCall();
  // Executes instructions; a system call is one.
  absl::Status Step(uint64_t instructions);
  // Lets it run by itself from now on.
  void LetGo();

  // At an entry or exit: the number of the system call.
  long call() const;
  // At the exit from recvmsg: what it has received, its first part.
  std::string Received() const;

 private:
  absl::Status Stopped(pid_t process, int* status) const;
  absl::Status Kill();
  absl::Status DriversFork();

  const pid_t driver_;
  pid_t keeper_;
  bool stopped_ = false;  // the keeper, which is traced
};

}  // namespace baton::crash

#endif  // TESTS_CRASH_TRACED_KEEPER_H_
