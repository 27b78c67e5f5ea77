// The processes of native workers, which batond holds for the next driver. Without them that driver
// would have nothing but what workers write in the arena, and must not send a signal on that.
#ifndef SUPERVISOR_DRIVER_WORKERS_HELD_WORKERS_H_
#define SUPERVISOR_DRIVER_WORKERS_HELD_WORKERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/driver/held_descriptors.h"

namespace baton::driver_process {

// Thread-compatible.
class HeldWorkers {
 public:
  // `held` outlives it. `nobody`: any descriptor that is no process, for slots without a worker;
  // stays the caller's, and open.
  HeldWorkers(HeldDescriptors* held, int nobody, uint32_t slots)
      : held_(held), nobody_(nobody), processes_(slots) {}

  // In the place of the slot's former one. `pidfd` stays the caller's. Before the worker can
  // attach; waits for nothing (HeldDescriptors::PutSoon).
  void Put(uint32_t slot, int pidfd, HeldDescriptors::Done done);

  // By slot. Where there was no worker: none, or a descriptor that is no process.
  static absl::StatusOr<std::vector<FileDescriptor>> Get(HeldDescriptors* held, uint32_t slots);

 private:
  HeldDescriptors* held_;
  int nobody_;
  std::vector<FileDescriptor> processes_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_HELD_WORKERS_H_
