// The policy of a service that is in force: what the configuration says, until an operator says
// otherwise.
#ifndef SUPERVISOR_KEEPER_POLICY_POLICIES_H_
#define SUPERVISOR_KEEPER_POLICY_POLICIES_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/keeper/service_driver.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class Policies {
 public:
  // The references outlive it. Puts the policy of `service` in force, or the one that an operator
  // had set with the keeper before this one, which is among `held` then.
  Policies(const v1::ServiceConfig& service, ServiceDriver& driver,
           const ServiceDriver::HeldByKey& held = {});

  const v1::Policy& policy() const { return policy_; }

  // Returns it complete, and in force unless it is only to be validated. kInvalidArgument names
  // every field that is wrong, and nothing has changed.
  absl::StatusOr<v1::Policy> Replace(v1::Policy policy, bool validate_only);

  // At most one, called whenever another policy is in force.
  void SetListener(std::function<void()> listener) { listener_ = std::move(listener); }

 private:
  void PutInForce(v1::Policy policy);

  const v1::ServiceConfig& service_;
  ServiceDriver& driver_;
  v1::Policy policy_;
  std::function<void()> listener_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_POLICY_POLICIES_H_
