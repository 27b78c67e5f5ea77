// These are the options of a soft device, among them the faults that it injects into its own sends.
#ifndef LIB_NIC_SOFT_OPTIONS_H_
#define LIB_NIC_SOFT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// The numbers are those of v1::FaultRule::Kind, by which a configuration names them.
enum class FaultKind : uint8_t {
  kNone = 0,
  kDelay,  // this message, and those behind it, leave later
  kStall,  // the connection neither sends nor receives for a while
  kRnr,    // as if the peer had answered "receiver not ready"
  kCut,    // the link is cut: both sides lose the connection without a disconnect
  kRetry,  // as if the peer had not answered any retry: kRetryExceeded
  kLost,   // the device reports that it is lost; this message still leaves
  kError,  // the request completes with a chosen error and the queue pair fails
};

// Applies to the n-th message of a connection (from 1), to every n-th, or to each with a
// probability: exactly one of the three is set.
struct FaultRule {
  FaultKind kind = FaultKind::kNone;
  double probability = 0;
  uint64_t nth = 0;
  uint64_t every = 0;
  uint64_t duration_us = 0;
  CompletionStatus status = CompletionStatus::kGeneralError;  // kError
};

// The same seed gives the same faults.
struct FaultPlan {
  uint64_t seed = 0;
  std::vector<FaultRule> rules;
};

struct FaultDecision {
  FaultKind kind = FaultKind::kNone;
  uint64_t duration_us = 0;
  CompletionStatus status = CompletionStatus::kSuccess;
};

// The decisions for one connection: a function of the plan's seed, the connection's ordinal on its
// device, and the message's number. The first rule that applies wins.
class FaultSequence {
 public:
  FaultSequence() = default;
  FaultSequence(const FaultPlan* plan, uint64_t connection)
      : plan_(plan), connection_(connection) {}

  bool active() const { return plan_ != nullptr && !plan_->rules.empty(); }
  FaultDecision Next();

 private:
  bool Applies(const FaultRule& rule, size_t index) const;

  const FaultPlan* plan_ = nullptr;  // the device's
  uint64_t connection_ = 0;
  uint64_t message_ = 0;
};

}  // namespace baton::verbs::soft

namespace baton::nic {
struct Host;
class QueuePair;
namespace control {
struct Modify;
}
}  // namespace baton::nic

namespace baton::verbs::soft {

// A right of a region, on this device only: a peer's SEND_WITH_INV may invalidate its rkey, like
// that of a fast-registered region or a type 2 window on a NIC. If an ordinary region's rkey is
// named, on a NIC or here, the receive fails with kRemoteInvalidRequest and the sender with
// kRemoteOperationError.
inline constexpr uint32_t kSoftRemoteInvalidate = 1u << 16;

// Behaviour that every NIC may show and a NIC of an idle machine hardly does, for tests of drivers.
// The first four are probabilities for each turn or ring of a register, drawn from the seed.
struct NicBehaviour {
  uint64_t seed = 0;
  double early = 0;            // the NIC looks at all records, rung or not
  double late = 0;             // a ring waits for another turn
  double repeated = 0;         // a ring comes once more, in another turn
  double reordered = 0;        // the rings of a turn come in the opposite order
  uint32_t owner_byte_us = 0;  // most delay between a completion's entry and its owner byte
};

struct SoftDeviceOptions {
  FaultPlan faults;
  NicBehaviour behaviour;
  uint64_t seed = 0;  // of queue pair numbers and keys; 0: from the operating system
  uint32_t min_rnr_timer_us = 500;
  // A request fails with kRetryExceeded if the peer shows no sign of life for (retry_count + 1)
  // times this. 0: never. A stopped peer does not answer, although a hardware NIC would answer for
  // it. So this must not be short.
  uint32_t ack_timeout_ms = 2000;
  uint32_t connect_timeout_ms = 10'000;   // TCP connect and the peer's decision
  uint32_t handshake_timeout_ms = 2000;   // of a peer that connected and says nothing
  uint32_t disconnect_timeout_ms = 1000;  // for the peer's answer
  uint32_t max_half_open = 1024;          // peers that connected and have not yet asked
  uint32_t max_queue_pairs = 131'072;     // of all files (limits.h)
  // The most connections of a file that exchange frames with a NIC of the same machine through
  // memory. Each takes 135,168 bytes for both ends. 0: all connections stay on TCP.
  uint32_t max_memory_wires = 1024;
  // A connection gets memory after this many frames. 0: when it is established.
  uint32_t memory_wire_after = 64;
  // Connects a queue pair in INIT to another one of the NIC, for tests of queues without
  // connections. Empty: MODIFY cannot connect.
  std::function<absl::Status(const nic::Host&, const nic::control::Modify&, nic::QueuePair*)>
      connect;
  // For tests of senders that must never meet it: counts the answers "receiver not ready", also
  // those after which a request is tried again and succeeds. The NIC's thread writes it, which is
  // that of Progress() and PostSend() if the NIC is embedded. It outlives the device. Null: nobody
  // counts.
  uint64_t* receivers_not_ready = nullptr;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_SOFT_OPTIONS_H_
