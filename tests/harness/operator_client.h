// What a running Baton says of itself: to operators, and on the management sockets of its keepers.
// Every call is bounded in time.
#ifndef TESTS_HARNESS_OPERATOR_CLIENT_H_
#define TESTS_HARNESS_OPERATOR_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "proto/baton/v1/operator.pb.h"
#include "tests/harness/wait_until.h"

namespace baton::harness {

// The operator service. Calls wait for control to come up, within their time. gRPC stays behind
// this header.
class OperatorClient {
 public:
  explicit OperatorClient(const std::string& socket);
  ~OperatorClient();

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  absl::StatusOr<v1::ListServicesResponse> ListServices();
  absl::StatusOr<v1::GetServiceResponse> GetService(const std::string& service);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers(const std::string& service);
  absl::StatusOr<v1::ListShardsResponse> ListShards(const std::string& service);
  absl::StatusOr<v1::ListConnectionsResponse> ListConnections(const std::string& service,
                                                              uint32_t page_start = 0);
  absl::Status ReplaceDriverCode(const std::string& service);
  absl::StatusOr<v1::ReplaceKeeperResponse> ReplaceKeeper(const std::string& service,
                                                          uint32_t watch_window_ms = 0);
  absl::Status ReplaceProgram(v1::ReplaceProgramRequest::Program program,
                              uint32_t watch_window_ms = 0);
  absl::StatusOr<v1::KillWorkerResponse> KillWorker(const std::string& service, uint64_t worker);
  absl::StatusOr<v1::StopWorkerResponse> StopWorker(const std::string& service, uint64_t worker);
  // All shards. `to_worker` 0: the keeper chooses.
  absl::StatusOr<v1::HandoffResponse> Handoff(const std::string& service, uint64_t to_worker);
  absl::StatusOr<v1::HandoffResponse> Handoff(const v1::HandoffRequest& request);
  absl::StatusOr<v1::UpgradeResponse> Upgrade(const std::string& service,
                                              const v1::UpgradePlan& plan);
  absl::StatusOr<v1::RollbackResponse> Rollback(const v1::RollbackRequest& request);
  absl::StatusOr<v1::ListUpgradesResponse> ListUpgrades(const std::string& service);

 private:
  struct Stub;
  std::unique_ptr<Stub> stub_;
  std::chrono::milliseconds timeout_ = Patient(std::chrono::seconds(10));
};

// What a service's keeper says, also while control is dead or stopped.
class KeeperView {
 public:
  // `state_dir`: batond's.
  static absl::StatusOr<std::unique_ptr<KeeperView>> Connect(const std::string& state_dir,
                                                             const std::string& service);

  absl::StatusOr<internal::Description> Describe();
  absl::StatusOr<std::vector<v1::Upgrade>> ListUpgrades();  // the newest first
  // What has happened since the last call, as far as the keeper's log reaches back.
  absl::StatusOr<std::vector<v1::Event>> NewEvents();

 private:
  KeeperView(std::string path, MessageChannel channel)
      : path_(std::move(path)), channel_(std::move(channel)) {}

  // Asks the next keeper if the one that was connected has ended.
  absl::StatusOr<internal::ManagementReply> Ask(internal::ManagementRequest request);
  absl::StatusOr<internal::ManagementReply> AskOnce(const internal::ManagementRequest& request);

  const std::string path_;
  MessageChannel channel_;
  uint64_t last_id_ = 0;
  uint64_t last_event_ = 0;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_OPERATOR_CLIENT_H_
