// A service that runs for a test of those who write it: batond, its processes, and two workers.
#ifndef TESTS_KIT_SERVICE_RUN_H_
#define TESTS_KIT_SERVICE_RUN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/v1/operator.pb.h"
#include "tests/harness/child_process.h"
#include "tests/harness/operator_client.h"
#include "tests/harness/temp_directory.h"

namespace baton::testing_kit {

// Where the programs and libraries of a release lie.
struct Installation {
  std::string libexec;  // batond and what it starts
  std::string hooks;    // a libbaton.so.0 with crash points
};

// See struct baton_test_options.
struct RunOptions {
  Installation installation;
  std::vector<std::string> worker;
  std::string service;
  std::string crash_at;
};

// Every wait is bounded by 30 seconds. Thread-compatible: the thread that started it
// (ChildProcess).
class ServiceRun {
 public:
  static absl::StatusOr<std::unique_ptr<ServiceRun>> Start(RunOptions options);
  ~ServiceRun();

  absl::Status KillOwnerAfter(uint64_t microseconds);
  // Waits for the kill that was asked for, and starts the next worker that stands by.
  absl::Status Settle();
  absl::Status HandOff();
  // Returns how many workers were killed. kInternal: one has ended otherwise.
  absl::StatusOr<uint32_t> Kills();
  std::string Logs() const;
  uint16_t port() const { return port_; }

 private:
  ServiceRun(RunOptions options, harness::TempDirectory directory)
      : options_(std::move(options)), directory_(std::move(directory)) {}
  absl::Status StartBatond();
  absl::Status StartWorker(bool doomed);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers() const;
  // Null: it does not own a shard, or is not ready.
  absl::StatusOr<harness::ChildProcess*> Owner();

  const RunOptions options_;
  const harness::TempDirectory directory_;
  uint16_t port_ = 0;
  std::unique_ptr<harness::ChildProcess> batond_;
  std::unique_ptr<harness::OperatorClient> operators_;
  std::vector<std::unique_ptr<harness::ChildProcess>> workers_;  // in the order of their starts
  harness::ChildProcess* victim_ = nullptr;
  std::thread killer_;
};

}  // namespace baton::testing_kit

#endif  // TESTS_KIT_SERVICE_RUN_H_
