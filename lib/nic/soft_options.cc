#include "lib/nic/soft_options.h"

namespace baton::verbs::soft {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): decisions need no state but the message's number.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

bool FaultSequence::Applies(const FaultRule& rule, size_t index) const {
  if (rule.nth > 0) return message_ == rule.nth;
  if (rule.every > 0) return message_ % rule.every == 0;
  const uint64_t draw = Mix(Mix(Mix(plan_->seed ^ (index << 56)) ^ connection_) ^ message_);
  return std::ldexp(static_cast<double>(draw >> 11), -53) < rule.probability;
}

FaultDecision FaultSequence::Next() {
  ++message_;
  for (size_t index = 0; index < plan_->rules.size(); ++index) {
    const FaultRule& rule = plan_->rules[index];
    if (Applies(rule, index)) return {rule.kind, rule.duration_us, rule.status};
  }
  return {};
}

}  // namespace baton::verbs::soft
