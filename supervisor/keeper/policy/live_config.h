// The configuration of a running service. Takes from a changed one what a running keeper can take.
#ifndef SUPERVISOR_KEEPER_POLICY_LIVE_CONFIG_H_
#define SUPERVISOR_KEEPER_POLICY_LIVE_CONFIG_H_

#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/policy/policies.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class LiveConfig {
 public:
  // `in_use` is what the parts of the keeper read. Its placement is the one in effect. `configured`
  // is the service as batond gave it. The references outlive this.
  LiveConfig(internal::KeeperConfig& in_use, v1::ServiceConfig configured, DriverClient& driver,
             Policies& policies, EventLog& events);

  // Takes what a running keeper can take (CompareService), and puts it in force. Returns what is in
  // force then, and each field that differs from `wanted` with the reason. Tells the driver what
  // the keeper runs with from now on. No connection ends. kDeadlineExceeded: it came too late, and
  // nothing is taken.
  absl::StatusOr<internal::ConfigTaken> Take(const internal::TakeConfig& wanted);

 private:
  void TakeListeners(v1::ServiceConfig* next, internal::ConfigTaken* result);
  void TakePolicy(v1::ServiceConfig* next, internal::ConfigTaken* result);
  void PutInForce(const v1::ServiceConfig& next);

  internal::KeeperConfig& in_use_;
  v1::ServiceConfig configured_;
  DriverClient& driver_;
  Policies& policies_;
  EventLog& events_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_POLICY_LIVE_CONFIG_H_
