// A service that runs for a test of those who write it: batond, its processes, and two workers.
#ifndef TESTS_KIT_SERVICE_RUN_H_
#define TESTS_KIT_SERVICE_RUN_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/operator.pb.h"
#include "proto/baton/v1/types.pb.h"
#include "tests/harness/child_process.h"
#include "tests/harness/operator_client.h"
#include "tests/harness/temp_directory.h"

namespace baton::testing_kit {

// Bounds every wait.
inline constexpr std::chrono::seconds kPatience{30};

// Where the programs and libraries of a release lie.
struct Installation {
  std::string libexec;  // batond and what it starts
  std::string hooks;    // a libbaton.so.0 with crash points
};

// A worker's program and its arguments: see struct baton_test_options.
using Command = std::vector<std::string>;

// See struct baton_test_options.
struct RunOptions {
  Installation installation;
  Command worker;
  std::string service;
  std::string crash_at;
  bool native = false;
  std::vector<std::string> batond;
};

// Kills a process later, from a thread of its own.
class Killer {
 public:
  static absl::StatusOr<std::unique_ptr<Killer>> Start(pid_t victim, uint64_t microseconds);
  // Kills at once if the time has not come yet.
  ~Killer();

 private:
  explicit Killer(FileDescriptor victim) : victim_(std::move(victim)) {}

  const FileDescriptor victim_;  // a pidfd
  std::promise<void> hurry_;
  std::thread thread_;
};

// Thread-compatible: the thread that started it (ChildProcess).
class ServiceRun {
 public:
  static absl::StatusOr<std::unique_ptr<ServiceRun>> Start(RunOptions options);
  ~ServiceRun();

  absl::Status KillOwnerAfter(uint64_t microseconds);
  // Waits for the kill that was asked for, and starts the next worker that stands by.
  absl::Status Settle();
  absl::Status HandOff();
  // Upgrades to workers of this program, or of the same one if `worker` is empty. Waits until the
  // old workers have ended.
  absl::Status Upgrade(const Command& worker);
  // Returns true if the first worker has killed itself at `crash_at`. kInternal: a worker has ended
  // that nobody was to end.
  absl::StatusOr<bool> Crashed();
  std::string Logs() const;
  uint16_t port() const { return port_; }

 private:
  struct Worker {
    pid_t pid = 0;
    FileDescriptor pidfd;
    std::unique_ptr<harness::ChildProcess> process;  // null: the keeper has started it
    bool doomed = false;                             // it dies at `crash_at`
    bool killed = false;                             // KillOwnerAfter has chosen it
    bool retired = false;                            // an upgrade has ended it
  };

  ServiceRun(RunOptions options, harness::TempDirectory directory)
      : options_(std::move(options)), directory_(std::move(directory)) {}
  absl::Status StartBatond();
  absl::Status StartFirstWorker();
  absl::Status StartWorker(bool doomed);
  // Enters the workers that the keeper has started. Waits until there are an owner and a worker
  // that stands by.
  absl::Status AwaitKeepersWorkers();
  absl::Status AwaitEnd(uint64_t upgrade_id, v1::Upgrade* upgrade);
  // If the doomed worker has died, starts one in its place, once.
  absl::Status ReplaceDoomed();
  // The worker's command, for this service.
  Command Filled(const Command& worker) const;
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers() const;
  Worker* Find(pid_t pid);          // that has not ended; null: none
  absl::StatusOr<Worker*> Owner();  // null: nobody owns the shard
  absl::StatusOr<Worker*> AwaitOwner();

  RunOptions options_;
  const harness::TempDirectory directory_;
  uint16_t port_ = 0;
  std::unique_ptr<harness::ChildProcess> batond_;
  std::unique_ptr<harness::OperatorClient> operators_;
  std::vector<std::unique_ptr<Worker>> workers_;  // in the order of their starts
  bool replaced_doomed_ = false;
  Worker* victim_ = nullptr;
  std::unique_ptr<Killer> killer_;
};

}  // namespace baton::testing_kit

#endif  // TESTS_KIT_SERVICE_RUN_H_
