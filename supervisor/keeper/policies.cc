#include "supervisor/keeper/policies.h"

#include <utility>

#include "lib/base/status_macros.h"
#include "supervisor/config/policy.h"

namespace baton::keeper {

Policies::Policies(const v1::ServiceConfig& service, ServiceDriver& driver)
    : service_(service), driver_(driver) {
  PutInForce(service.policy());
}

absl::StatusOr<v1::Policy> Policies::Replace(v1::Policy policy, bool validate_only) {
  BATON_RETURN_IF_ERROR(CompletePolicy(policy, service_));
  if (!validate_only) PutInForce(policy);
  return policy;
}

void Policies::PutInForce(v1::Policy policy) {
  policy_ = std::move(policy);
  driver_.PutPolicyInForce(policy_);
  if (listener_) listener_();
}

}  // namespace baton::keeper
