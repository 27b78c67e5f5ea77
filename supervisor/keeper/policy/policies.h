// The policy of a service that is in force: the configuration's, until an operator sets another.
#ifndef SUPERVISOR_KEEPER_POLICY_POLICIES_H_
#define SUPERVISOR_KEEPER_POLICY_POLICIES_H_

#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/keeper/driver_client.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class Policies {
 public:
  // Puts in force the policy that an operator set with the former keeper, if `held` has it, or else
  // that of `service`. `service` and `driver` outlive this object.
  Policies(const v1::ServiceConfig& service, DriverClient& driver,
           const DriverClient::HeldByKey& held = {});

  const v1::Policy& policy() const { return policy_; }

  // Completes `policy`, puts it in force unless `validate_only`, and returns it. kInvalidArgument
  // names every field that is wrong; nothing has changed then.
  absl::StatusOr<v1::Policy> Replace(v1::Policy policy, bool validate_only);

  // Sets the only listener, which is called whenever another policy is in force.
  void SetListener(std::function<void()> listener) { listener_ = std::move(listener); }

 private:
  void PutInForce(v1::Policy policy);

  const v1::ServiceConfig& service_;
  DriverClient& driver_;
  v1::Policy policy_;
  std::function<void()> listener_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_POLICY_POLICIES_H_
