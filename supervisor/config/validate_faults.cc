#include "supervisor/config/validate_faults.h"

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr int kMaxRules = 64;
constexpr uint64_t kMaxDurationUs = 3'600'000'000;  // an hour: longer is surely a slip

void CheckMessages(const v1::FaultRule& rule, const Node& node) {
  switch (rule.messages_case()) {
    case v1::FaultRule::kProbability:
      if (!(rule.probability() > 0 && rule.probability() <= 1)) {
        node.Refuse("probability", absl::StrCat(rule.probability(), " is not above 0 and up to 1"));
      }
      return;
    case v1::FaultRule::kNth:
      if (rule.nth() == 0) node.Refuse("nth", "is 0; messages are counted from 1");
      return;
    case v1::FaultRule::kEvery:
      if (rule.every() == 0) node.Refuse("every", "is 0; 1 takes every message");
      return;
    case v1::FaultRule::MESSAGES_NOT_SET:
      node.Refuse("probability", "is missing; a rule has one of probability, nth and every");
      return;
  }
}

void CheckRule(const v1::FaultRule& rule, const Node& node) {
  if (rule.kind() == v1::FaultRule::NONE || !v1::FaultRule::Kind_IsValid(rule.kind())) {
    node.Refuse("kind", "is missing; use DELAY, STALL, RNR, CUT, RETRY, LOST or ERROR");
  }
  CheckMessages(rule, node);
  const bool waits = rule.kind() == v1::FaultRule::DELAY || rule.kind() == v1::FaultRule::STALL;
  if (waits && rule.duration_us() == 0) {
    node.Refuse("duration_us", "is missing; DELAY and STALL last that long");
  } else if (rule.duration_us() > kMaxDurationUs) {
    node.Refuse("duration_us",
                absl::StrCat(rule.duration_us(), " is not between 0 and ", kMaxDurationUs));
  }
  if (!v1::FaultRule::Error_IsValid(rule.error())) {
    node.Refuse("error",
                absl::StrCat(rule.error(), " is no error; see proto/baton/v1/config.proto"));
  } else if (rule.error() != v1::FaultRule::GENERAL && rule.kind() != v1::FaultRule::ERROR) {
    node.Refuse("error", "only a rule of kind ERROR has one");
  }
}

}  // namespace

void CheckFaults(v1::FaultPlan& plan, const Node& node) {
  if (plan.rules_size() > kMaxRules) {
    node.Refuse("rules", absl::StrCat("has ", plan.rules_size(), ", at most ", kMaxRules));
    return;
  }
  for (int i = 0; i < plan.rules_size(); ++i) {
    v1::FaultRule& rule = *plan.mutable_rules(i);
    CheckRule(rule, node.Child("rules", rule, i));
  }
}

}  // namespace baton
