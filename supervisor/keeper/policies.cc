#include "supervisor/keeper/policies.h"

#include <utility>

#include "lib/base/status_macros.h"
#include "lib/driver/device_needs.h"
#include "supervisor/config/policy.h"

namespace baton::keeper {

Policies::Policies(const v1::ServiceConfig& service, ServiceEngine& engine)
    : service_(service),
      engine_(engine),
      admission_(driver::NeedsOf(engine.arena().shape()).registered_bytes) {
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
    v1::Policy of_connections = policy_;
    // The queue pairs of native services are all there from the start.
    if (service_.mode() == v1::NATIVE) of_connections.mutable_service()->clear_queue_pairs();
    admission_.SetPolicy(std::move(of_connections));
    engine_.SetPostRates(policy_.service().posts_per_second(), policy_.worker().posts_per_second());
  });
  if (listener_) listener_();
}

}  // namespace baton::keeper
