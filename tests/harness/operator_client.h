// The operator service of a running Baton. Every call is bounded in time, and waits for control to
// come up within it. gRPC stays behind this header.
#ifndef TESTS_HARNESS_OPERATOR_CLIENT_H_
#define TESTS_HARNESS_OPERATOR_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/baton/v1/operator.pb.h"
#include "tests/harness/patience.h"

namespace baton::harness {

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
  absl::StatusOr<v1::ReplaceKeeperResponse> ReplaceKeeper(const std::string& service);
  absl::Status ReplaceProgram(v1::ReplaceProgramRequest::Program program);
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

}  // namespace baton::harness

#endif  // TESTS_HARNESS_OPERATOR_CLIENT_H_
