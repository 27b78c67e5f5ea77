#include "supervisor/keeper/policies.h"

#include <utility>

#include "lib/base/status_macros.h"
#include "supervisor/config/policy.h"

namespace baton::keeper {

Policies::Policies(const v1::ServiceConfig& service, ServiceEngine& engine)
    : service_(service), engine_(engine) {
  PutInForce(service.policy());
  engine_.Run([this] { engine_.SetGate(&admission_); });
}

absl::StatusOr<v1::Policy> Policies::Replace(v1::Policy policy, bool validate_only) {
  BATON_RETURN_IF_ERROR(CompletePolicy(policy, service_));
  if (!validate_only) PutInForce(policy);
  return policy;
}

void Policies::PutInForce(v1::Policy policy) {
  policy_ = std::move(policy);
  engine_.Run([this] {
    admission_.SetPolicy(policy_);
    engine_.SetPostRates(policy_.service().posts_per_second(), policy_.worker().posts_per_second());
  });
  if (listener_) listener_();
}

}  // namespace baton::keeper
