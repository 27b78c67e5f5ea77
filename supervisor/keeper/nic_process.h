#ifndef SUPERVISOR_KEEPER_NIC_PROCESS_H_
#define SUPERVISOR_KEEPER_NIC_PROCESS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "supervisor/keeper/confine.h"

namespace baton::keeper {

// Starts baton-nic, which lies beside this program, and returns the soft device that has it for its
// NIC. The process has this identity, and ends with the thread that has called this.
absl::StatusOr<std::unique_ptr<verbs::Device>> StartNic(const Identity& identity);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_NIC_PROCESS_H_
