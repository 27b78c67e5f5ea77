#include "supervisor/keeper/policy/policies.h"

#include "lib/base/status.h"
#include "supervisor/config/policy.h"

namespace baton::keeper {
namespace {

constexpr char kHeldKey[] = "policy";

}  // namespace

Policies::Policies(const v1::ServiceConfig& service, DriverClient& driver,
                   const DriverClient::HeldByKey& held)
    : service_(service), driver_(driver) {
  const auto entry = held.find(kHeldKey);
  if (entry == held.end()) {
    PutInForce(service.policy());
    return;
  }
  driver.DealWithHeld(kHeldKey, [&] {
    v1::Policy former;
    PutInForce(former.ParseFromString(entry->second.value) ? former : service.policy());
  });
}

absl::StatusOr<v1::Policy> Policies::Replace(v1::Policy policy, bool validate_only) {
  BATON_RETURN_IF_ERROR(CompletePolicy(policy, service_));
  if (!validate_only) {
    PutInForce(policy);
    driver_.Hold(kHeldKey, policy.SerializeAsString());
  }
  return policy;
}

void Policies::PutInForce(v1::Policy policy) {
  policy_ = std::move(policy);
  driver_.PutPolicyInForce(policy_);
  if (listener_) listener_();
}

}  // namespace baton::keeper
