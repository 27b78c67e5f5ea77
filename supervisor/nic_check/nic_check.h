// Checks on a device what native ownership of its queues needs (lib/verbs/mlx5/checklist.md).
#ifndef SUPERVISOR_NIC_CHECK_NIC_CHECK_H_
#define SUPERVISOR_NIC_CHECK_NIC_CHECK_H_

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "supervisor/nic_check/processes.h"

namespace baton::nic_check {

struct Options {
  uint8_t port = 1;
  int gid_index = -1;                        // see FindLoopbackAddress
  uint32_t kills = 200;                      // drivers killed in each check that kills some
  uint64_t seed = 1;                         // of the instants of the kills
  std::chrono::milliseconds patience{1000};  // for anything that the device has to do

  uint64_t patience_ns() const {
    return static_cast<uint64_t>(std::chrono::nanoseconds(patience).count());
  }
};

struct Finding {
  std::string name;
  bool holds = false;
  std::string text;  // what was seen
};

inline constexpr size_t kSharedBytes = 8 << 20;

// Makes some queue pairs on the device, connected to each other through its port, and forks drivers
// of them, some of which it kills. Other users of the device only notice a little load. The process
// must have no other threads. `shared` must have kSharedBytes and outlive the context's objects.
//
// An error: nothing could be checked. No queue pair could be connected, or the environment asks
// libibverbs for behaviour that Baton's driver cannot work with.
absl::StatusOr<std::vector<Finding>> CheckNic(ibv_context* context, const Options& options,
                                              SharedMemory* shared);

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_NIC_CHECK_H_
