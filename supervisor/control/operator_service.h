#ifndef SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_
#define SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "proto/baton/v1/operator.pb.h"
#include "supervisor/control/audit_trail.h"
#include "supervisor/control/keepers.h"
#include "supervisor/control/roles.h"
#include "supervisor/control/worker_streams.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace baton {

class Callers;
class EventStreams;

// The objects that the operator service uses. They outlive it.
struct OperatorServiceContext {
  Keepers* keepers;
  WorkerStreams* streams;
  const Callers* callers;
  AuditTrail* trail;
  EventStreams* event_streams;
  std::function<absl::Status(const v1::ReloadRequest&, v1::ReloadResponse*)> reload;
};

// For `role`: what that may not call is left to the server's generic service.
std::unique_ptr<grpc::Service> MakeOperatorService(const OperatorServiceContext& context,
                                                   Role role);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_
