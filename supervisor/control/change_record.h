#ifndef SUPERVISOR_CONTROL_CHANGE_RECORD_H_
#define SUPERVISOR_CONTROL_CHANGE_RECORD_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/server_context.h"
#include "supervisor/control/audit_trail.h"
#include "supervisor/control/callers.h"
#include "supervisor/control/change_budget.h"
#include "supervisor/control/keepers.h"

namespace baton {

// Records the calls that change something in the audit trail. Thread-safe.
class ChangeRecord {
 public:
  // All must outlive it.
  ChangeRecord(Keepers* keepers, const Callers* callers, AuditTrail* trail)
      : keepers_(keepers), callers_(callers), trail_(trail) {}

  // Does `work`, the change that `call` asks for, and records it before and after. `service`: the
  // name in the request, which may not exist. kResourceExhausted: this caller has asked for too
  // many changes lately, or too many of its changes have failed. Then nothing was done, and that is
  // recorded once a minute.
  absl::Status Do(const grpc::ServerContextBase& call, const std::string& what,
                  const google::protobuf::Message& request, const std::string& service,
                  const std::function<absl::Status()>& work);

 private:
  Keepers* const keepers_;
  const Callers* const callers_;
  AuditTrail* const trail_;
  ChangeBudget budget_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CHANGE_RECORD_H_
