#ifndef SUPERVISOR_KEEPER_NIC_PROCESS_H_
#define SUPERVISOR_KEEPER_NIC_PROCESS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"

namespace baton::keeper {

// Starts baton-nic, which lies beside this program, and returns the soft device that has it for its
// NIC. The process ends when no process has a descriptor of the device any more. It has this
// real-time priority; 0: none.
absl::StatusOr<std::unique_ptr<verbs::Device>> StartNic(int realtime_priority);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_NIC_PROCESS_H_
