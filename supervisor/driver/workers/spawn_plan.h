#ifndef SUPERVISOR_DRIVER_WORKERS_SPAWN_PLAN_H_
#define SUPERVISOR_DRIVER_WORKERS_SPAWN_PLAN_H_

#include <spawn.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

// How a program is started (posix_spawn(3)): in a session of its own, with the default action for
// each signal, and with an environment of PATH alone. Thread-compatible.
class SpawnPlan {
 public:
  SpawnPlan();
  ~SpawnPlan();
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  // The program has `descriptor` under the number `as`.
  void Give(int descriptor, int as);
  // It has none from this number on.
  void CloseFrom(int descriptor);
  // `words` are its arguments behind its name.
  absl::StatusOr<pid_t> Spawn(const std::string& program, std::vector<std::string> words = {});

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

// Returns a copy whose number is above `given`. The child is given its descriptors one after the
// other, and one that is given first would overwrite a lower number.
absl::StatusOr<FileDescriptor> CopyAbove(int descriptor, int given);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_SPAWN_PLAN_H_
