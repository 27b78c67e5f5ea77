#ifndef SUPERVISOR_CONTROL_SERVICE_CALLS_H_
#define SUPERVISOR_CONTROL_SERVICE_CALLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "proto/baton/internal/keeper.pb.h"
#include "proto/baton/v1/operator.pb.h"
#include "supervisor/control/keepers.h"
#include "supervisor/control/streams.h"

namespace baton {

inline constexpr uint64_t kSecondNs = 1'000'000'000;
inline constexpr uint64_t kMaxCallNs = 30 * kSecondNs;

// Asks keepers, and workers' streams, on behalf of an operator's call. A request may take the time
// that the operator's call has left, at most kMaxCallNs. Thread-safe.
class ServiceCalls {
 public:
  // Both must outlive it.
  ServiceCalls(Keepers* keepers, WorkerStreams* streams) : keepers_(keepers), streams_(streams) {}

  // Describes the service, including the health that its workers report.
  absl::StatusOr<internal::Description> Describe(const grpc::ServerContextBase& call,
                                                 const std::string& service) const;
  std::vector<Keepers::Described> DescribeAll(const grpc::ServerContextBase& call) const;

  // Sends the keeper a request that changes nothing.
  absl::StatusOr<internal::ManagementReply> Ask(const grpc::ServerContextBase& call,
                                                const std::string& service,
                                                internal::ManagementRequest request,
                                                uint64_t at_most_ns = kMaxCallNs) const;
  // Sends the keeper a request that changes something, with the caller's trace.
  absl::StatusOr<internal::ManagementReply> Change(const grpc::ServerContextBase& call,
                                                   const std::string& service,
                                                   internal::ManagementRequest request,
                                                   uint64_t at_most_ns = kMaxCallNs) const;

 private:
  void AddHealth(const std::string& service, internal::Description* described) const;

  Keepers* const keepers_;
  WorkerStreams* const streams_;
};

const v1::Worker* FindWorker(const internal::Description& described, uint64_t id);

absl::Status NoSuchShard(const std::string& service, uint32_t shard, size_t count);
absl::Status NoSuchWorker(const std::string& service, uint64_t id);

// Asks a worker to end. Waits until its keeper does not know it any more, the request's time is
// over (kDeadlineExceeded) or the call is cancelled.
absl::Status StopWorker(const grpc::ServerContext& call, const v1::StopWorkerRequest& request,
                        const ServiceCalls& calls, WorkerStreams* streams);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_SERVICE_CALLS_H_
