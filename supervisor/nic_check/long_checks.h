// The checks that have files of their own: library_bytes.cc and messages.cc.
#ifndef SUPERVISOR_NIC_CHECK_LONG_CHECKS_H_
#define SUPERVISOR_NIC_CHECK_LONG_CHECKS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "supervisor/nic_check/checked_device.h"

namespace baton::nic_check {

// Has this machine's libmlx5 post requests, and our driver the same ones into a copy of the queue.
// An error tells of the first that differs. (tests/lib/nic/oracle has all kinds, at all places.)
absl::StatusOr<std::string> RequestsAreLibrarys(CheckedDevice* device);

// The requests of its predecessor that a driver believes to be queued. All but the first are wrong,
// and exist for tests of the check.
enum class Belief : uint8_t { kLastQueued, kNothing, kEverything };

// Drivers send messages of every kind from one queue pair to another, and are killed at random
// instants, or beside a post: SENDs with and without an immediate, WRITEs, READs and
// fetch-and-adds, inline and of several buffers, of one slot and of two, one at a time and in
// chains, over and over around both queues. An heir asks what its predecessor had queued. Each
// message has to arrive once, in order and whole.
absl::StatusOr<std::string> KilledMessengersAreFollowedExactly(CheckedDevice* device,
                                                               Belief belief);

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_LONG_CHECKS_H_
