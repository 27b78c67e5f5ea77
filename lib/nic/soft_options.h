#ifndef LIB_NIC_SOFT_OPTIONS_H_
#define LIB_NIC_SOFT_OPTIONS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "lib/nic/fault_plan.h"

namespace baton::nic {
struct Host;
class QueuePair;
namespace control {
struct Modify;
}
}  // namespace baton::nic

namespace baton::verbs::soft {

// Right of a region, on this device only: its rkey may be invalidated by a peer's SEND_WITH_INV, as
// that of a fast-registered region or a type 2 window on a NIC. Ordinary regions may not, there or
// here: the receive fails with kRemoteInvalidRequest and the sender with kRemoteOperationError.
inline constexpr uint32_t kSoftRemoteInvalidate = 1u << 16;

// Behaviour that every NIC may show and an idle machine's hardly does, for tests of drivers. The
// first four are probabilities, drawn from the seed, of each turn or ring of a register.
struct NicBehaviour {
  uint64_t seed = 0;
  double early = 0;            // it looks at all records, rung or not
  double late = 0;             // a ring waits for another turn
  double repeated = 0;         // a ring comes once more, in another turn
  double reordered = 0;        // the rings of a turn come in the opposite order
  uint32_t owner_byte_us = 0;  // from the rest of a completion's entry to its owner byte, at most
};

struct SoftDeviceOptions {
  FaultPlan faults;
  NicBehaviour behaviour;
  uint64_t seed = 0;  // of queue pair numbers and keys; 0: from the operating system
  uint32_t min_rnr_timer_us = 500;
  // Without any sign of the peer for (retry_count + 1) times this: kRetryExceeded. 0: never. A
  // peer that is stopped does not answer (a NIC would answer for it), so it must not be short.
  uint32_t ack_timeout_ms = 2000;
  uint32_t connect_timeout_ms = 10'000;   // TCP connect and the peer's decision
  uint32_t handshake_timeout_ms = 2000;   // of a peer that connected and says nothing
  uint32_t disconnect_timeout_ms = 1000;  // for the peer's answer
  uint32_t max_half_open = 1024;          // peers that connected and have not yet asked
  uint32_t max_queue_pairs = 65'536;
  // Connections of a file that may exchange their frames with a NIC of the same machine through
  // memory, which takes 135,168 bytes for both ends. 0: all of them stay on TCP.
  uint32_t max_memory_wires = 1024;
  // A connection gets memory after so many frames. 0: when it is established.
  uint32_t memory_wire_after = 64;
  // For tests of queues without connections: connects a queue pair in INIT to another one of the
  // NIC. Empty: MODIFY cannot.
  std::function<absl::Status(const nic::Host&, const nic::control::Modify&, nic::QueuePair*)>
      connect;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_SOFT_OPTIONS_H_
