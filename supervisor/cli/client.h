// The CLI's end of the operator socket. No gRPC in this header.
//
// Thread-compatible.
#ifndef SUPERVISOR_CLI_CLIENT_H_
#define SUPERVISOR_CLI_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/v1/operator.pb.h"

namespace baton {

// The operator service over TCP, with mutual TLS. Files are PEM.
struct TlsTarget {
  std::string address = {};  // HOST:PORT
  std::string ca_file = {};  // that the server's certificate is signed by
  std::string certificate_file = {};
  std::string key_file = {};
  std::string server_name = {};  // that its certificate is to have; empty: the host
};

// How each kDeadlineExceeded of an OperatorClient ends.
inline constexpr char kTimeoutCure[] = "; --timeout gives more";

class OperatorClient {
 public:
  // Connects; a control that was killed is waited for, batond starts it again. kUnavailable or
  // kPermissionDenied, with cause and cure, when that fails. Calls, too, end after
  // `timeout_seconds`, and those that only look are made again when control goes away under them.
  static absl::StatusOr<std::unique_ptr<OperatorClient>> Connect(const std::string& socket_path,
                                                                 double timeout_seconds);
  // Connects with the first call. Nothing is waited for, and no call made again.
  static absl::StatusOr<std::unique_ptr<OperatorClient>> Connect(const TlsTarget& target,
                                                                 double timeout_seconds);
  ~OperatorClient();

  // Told with every call from now on: a `traceparent` of W3C's; empty: none.
  void set_trace_parent(std::string trace_parent) { trace_parent_ = std::move(trace_parent); }

  absl::StatusOr<v1::GetStatusResponse> GetStatus(const v1::GetStatusRequest& request);
  absl::StatusOr<v1::ListServicesResponse> ListServices(const v1::ListServicesRequest& request);
  absl::StatusOr<v1::GetServiceResponse> GetService(const v1::GetServiceRequest& request);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers(const v1::ListWorkersRequest& request);
  absl::StatusOr<v1::GetWorkerResponse> GetWorker(const v1::GetWorkerRequest& request);
  absl::StatusOr<v1::StopWorkerResponse> StopWorker(const v1::StopWorkerRequest& request,
                                                    double timeout_seconds);
  absl::StatusOr<v1::KillWorkerResponse> KillWorker(const v1::KillWorkerRequest& request);
  absl::StatusOr<v1::ListShardsResponse> ListShards(const v1::ListShardsRequest& request);
  absl::StatusOr<v1::GetShardResponse> GetShard(const v1::GetShardRequest& request);
  absl::StatusOr<v1::ListConnectionsResponse> ListConnections(
      const v1::ListConnectionsRequest& request);
  absl::StatusOr<v1::GetConnectionResponse> GetConnection(const v1::GetConnectionRequest& request);
  absl::StatusOr<v1::HandoffResponse> Handoff(const v1::HandoffRequest& request,
                                              double timeout_seconds);
  absl::StatusOr<v1::UpgradeResponse> Upgrade(const v1::UpgradeRequest& request);
  absl::StatusOr<v1::RollbackResponse> Rollback(const v1::RollbackRequest& request);
  absl::StatusOr<v1::ListUpgradesResponse> ListUpgrades(const v1::ListUpgradesRequest& request);
  absl::StatusOr<v1::PauseUpgradeResponse> PauseUpgrade(const v1::PauseUpgradeRequest& request);
  absl::StatusOr<v1::ResumeUpgradeResponse> ResumeUpgrade(const v1::ResumeUpgradeRequest& request);
  absl::StatusOr<v1::DrainServiceResponse> DrainService(const v1::DrainServiceRequest& request);
  absl::StatusOr<v1::EndDrainResponse> EndDrain(const v1::EndDrainRequest& request);
  absl::StatusOr<v1::ListShardMovesResponse> ListShardMoves(
      const v1::ListShardMovesRequest& request);
  absl::StatusOr<v1::SetPolicyResponse> SetPolicy(const v1::SetPolicyRequest& request);
  absl::StatusOr<v1::ReplaceKeeperResponse> ReplaceKeeper(const v1::ReplaceKeeperRequest& request);
  absl::StatusOr<v1::ReplaceProgramResponse> ReplaceProgram(
      const v1::ReplaceProgramRequest& request);
  absl::StatusOr<v1::ReloadResponse> Reload(const v1::ReloadRequest& request);
  // Until the end of the stream; one that follows ends with control.
  absl::Status WatchEvents(const v1::WatchEventsRequest& request,
                           const std::function<void(const v1::Event&)>& on_event);

  // Why changes are asked for from now on, for the record.
  void SetReason(std::string reason) { reason_ = std::move(reason); }

  // Returns what answers left out since the last call.
  std::vector<std::string> TakeWarnings() { return std::exchange(warnings_, {}); }

 private:
  class Impl;
  OperatorClient(std::unique_ptr<Impl> impl, double timeout_seconds);

  enum class Repeat : uint8_t { kNever, kWhenLost };
  template <typename Request, typename Response, typename Method>
  absl::StatusOr<Response> Unary(Method method, const Request& request, double timeout_seconds,
                                 Repeat repeat);

  std::unique_ptr<Impl> impl_;
  const double timeout_seconds_;
  std::string reason_;
  std::vector<std::string> warnings_;
  std::string trace_parent_;
};

}  // namespace baton

#endif  // SUPERVISOR_CLI_CLIENT_H_
