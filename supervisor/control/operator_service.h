#ifndef SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_
#define SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_

#include <memory>

#include "supervisor/control/audit_trail.h"
#include "supervisor/control/keepers.h"
#include "supervisor/control/peer_registry.h"
#include "supervisor/control/worker_streams.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace baton {

// What the operator service works with. Outlives it.
struct OperatorServiceContext {
  Keepers* keepers;
  WorkerStreams* streams;
  PeerRegistry* peers;
  AuditTrail* trail;
};

std::unique_ptr<grpc::Service> MakeOperatorService(const OperatorServiceContext& context);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_
