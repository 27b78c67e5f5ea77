#ifndef SUPERVISOR_CONTROL_WORKER_STOP_H_
#define SUPERVISOR_CONTROL_WORKER_STOP_H_

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "proto/baton/v1/operator.pb.h"
#include "supervisor/control/service_calls.h"
#include "supervisor/control/worker_streams.h"

namespace baton {

// Asks a worker to end, and waits until its keeper no longer knows it, the request's time is over
// (kDeadlineExceeded) or the call is cancelled.
absl::Status StopWorker(const grpc::ServerContext& call, const v1::StopWorkerRequest& request,
                        const ServiceCalls& calls, WorkerStreams* streams);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_WORKER_STOP_H_
