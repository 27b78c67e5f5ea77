#ifndef SUPERVISOR_CONTROL_WORKER_SERVICE_H_
#define SUPERVISOR_CONTROL_WORKER_SERVICE_H_

#include <chrono>
#include <memory>

#include "supervisor/control/keepers.h"
#include "supervisor/control/log_budget.h"
#include "supervisor/control/peer_registry.h"
#include "supervisor/control/redemptions.h"
#include "supervisor/control/worker_streams.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace baton {

// The objects that the worker service's streams share. They outlive the streams.
struct WorkerServiceContext {
  Keepers* keepers;
  WorkerStreams* streams;
  PeerRegistry* peers;
  // How long a stream may be open without its first message.
  std::chrono::milliseconds hello_timeout;
  LogBudget log_budget;
  Redemptions redemptions;
};

std::unique_ptr<grpc::Service> MakeWorkerService(WorkerServiceContext* context);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_WORKER_SERVICE_H_
