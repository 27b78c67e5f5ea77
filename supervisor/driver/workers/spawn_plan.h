// Starts programs with posix_spawn(3), and reaps them.
#ifndef SUPERVISOR_DRIVER_WORKERS_SPAWN_PLAN_H_
#define SUPERVISOR_DRIVER_WORKERS_SPAWN_PLAN_H_

#include <spawn.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

// Starts a program in a process group of its own, with the default action for each signal, and with
// PATH as its whole environment. Thread-compatible.
class SpawnPlan {
 public:
  SpawnPlan();
  ~SpawnPlan();
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  // Gives the program a session of its own, for one that outlives this process: if it is stopped
  // when its starter ends, the kernel would end it (setpgid(2): an orphaned process group). Without
  // this it has a group of its own, so that a terminal's signals do not reach it, in the session of
  // its starter. A session has its own share of the processors (sched(7), autogroup), and Linux
  // 6.18 was seen to give one with a single runnable thread no processor for 10 s beside builds.
  void LeaveSession();
  // Gives the program `descriptor` under the number `as`.
  void Give(int descriptor, int as);
  void Close(int descriptor);
  // Gives the program no descriptors from this number on.
  void CloseFrom(int descriptor) { close_from_ = descriptor; }
  // `program`: its path. If that is an OpenFilePath(), the program has its own file open, for
  // scripts, under the number that CloseFrom got; its name is that of its place. `words`: the
  // arguments after its name. REQUIRES: CloseFrom was called. Call it once.
  absl::StatusOr<pid_t> Spawn(const std::string& program, std::vector<std::string> words = {});

 private:
  void Detach(int how);

  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
  int close_from_ = STDERR_FILENO + 1;
};

// Returns a copy whose number is above `given`. The child gets its descriptors one after the other,
// and an earlier one could overwrite the number of a later one's source.
absl::StatusOr<FileDescriptor> CopyAbove(int descriptor, int given);

// Reaps the process if it has ended, and returns how: "was killed by signal 6 (Aborted)", or just
// "ended" if it is no child of this process. Returns "" while it runs. Does not block.
std::string ReapProgram(int pidfd);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_SPAWN_PLAN_H_
