// Faults that a soft device injects into its own sends, the same ones for the same seed.
#ifndef LIB_NIC_FAULT_PLAN_H_
#define LIB_NIC_FAULT_PLAN_H_

#include <cstdint>
#include <vector>

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

#endif  // LIB_NIC_FAULT_PLAN_H_
