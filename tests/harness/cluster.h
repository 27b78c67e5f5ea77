// A Baton of its own for a test or the demonstration: batond with one ledger service, in a private
// directory, and ledger workers and peers for it.
//
// Everything is bounded in time. When something fails, DumpLogs shows what all processes logged.
// Thread-safety: none (ChildProcess).
#ifndef TESTS_HARNESS_CLUSTER_H_
#define TESTS_HARNESS_CLUSTER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/operator_client.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::harness {

struct ClusterOptions {
  Binaries binaries;
  verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  std::string service = "ledger";
  uint32_t shards = 4;
  uint32_t max_connections = 64;
  uint32_t window = 32;         // of the ledger
  uint32_t message_bytes = 64;  // of the ledger
  std::vector<std::string> batond_arguments;
  // The service's processes sleep at once, because the test's need the processors. 0: they yield
  // as they do by default, which is what benchmarks measure.
  uint32_t yield_microseconds = 1;
  // Programs that batond runs for its services.
  std::string driver = "baton-driver";  // of brokered ones
  std::string keeper = "baton-keeper";
  // Path of a ledger as a shared object: the service's workers are native. Empty: they are
  // brokered.
  std::string native_object;
  std::vector<std::string> native_arguments;  // besides those that every ledger has
  // The service is configured by a file, which WriteConfig changes, and not by options. On the soft
  // device, brokered.
  bool by_file = false;
  // Baton's programs are copies in libexec(), which a test may replace.
  bool own_programs = false;
};

struct LedgerOptions {
  int version = 1;
  // Crash point at which the worker kills itself, "name" or "name:n" (lib/base/crash_point.h);
  // empty: the ordinary program, which has none.
  std::string crash_at;
  bool previous_layout = false;  // it knows the layout version before the present one only
  std::string program = {};      // that takes a ledger's arguments; empty: the ledger itself
  std::vector<std::string> arguments;
  bool await_control = true;  // until control, too, shows that it is ready
};

struct UpgradeOptions {
  std::string program;  // its name in this tree
  // Besides those that every ledger of the Baton has; empty: as the running workers have them.
  std::vector<std::string> arguments;
  v1::UpgradePlan plan;  // the rest
};

// A running ledger worker, ready when it is returned. Destroying it kills the process.
struct LedgerWorker {
  std::unique_ptr<ChildProcess> process;
  uint64_t id = 0;
  int version = 0;
};

class Cluster {
 public:
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(ClusterOptions options);
  // Stops batond in order, or kills it when it does not.
  ~Cluster();

  const std::string& directory() const { return directory_.path(); }
  std::string libexec() const { return directory_.File("libexec"); }
  std::string SocketPath() const;  // of the service
  std::string OperatorSocketPath() const;
  OperatorClient& operators() { return *operators_; }
  KeeperView& keeper() { return *keeper_; }
  ChildProcess& batond() { return *batond_; }
  // Control's pid, also when it has outlived its batond; 0: there is none.
  pid_t ControlPid() const;
  // Where the service listens; 0 before the first worker has said it.
  uint16_t port() const { return port_; }

  // A new ledger-v1 or ledger-v2, attached and ready.
  absl::StatusOr<std::unique_ptr<LedgerWorker>> StartLedger(int version);
  absl::StatusOr<std::unique_ptr<LedgerWorker>> StartLedger(const LedgerOptions& options);
  // Command line of a ledger that serves here, without the program's name.
  std::vector<std::string> LedgerArguments(const std::string& name) const;
  // The same, and does not wait for anything that it says.
  absl::StatusOr<std::unique_ptr<ChildProcess>> SpawnLedger(const LedgerOptions& options);
  // A peer with its program filled in, and the service's port unless it has one.
  absl::StatusOr<std::unique_ptr<PeerProcess>> StartPeer(PeerOptions options);

  // For native workers: waits until one of them has said where the service listens.
  absl::Status WaitUntilListening();

  // For brokered services on devices that forks can use: waits until a broker drives and its twin
  // is ready, and returns what control says then.
  absl::StatusOr<v1::GetStatusResponse> AwaitBrokers();

  absl::StatusOr<v1::GetServiceResponse> GetService();
  // Whether `worker` owns every shard; false as well when control cannot say.
  bool OwnsAllShards(uint64_t worker);
  absl::Status WaitUntilOwner(uint64_t worker);
  absl::Status WaitUntilReady(uint64_t worker);
  // Until the keeper knows this worker no more.
  absl::Status WaitUntilGone(uint64_t worker);
  // Has control kill it, and waits until it is gone; another death may have been faster. Control
  // takes a thousand changes, and then two a second, so this asks for as long as `timeout`.
  absl::Status KillWorker(uint64_t worker, std::chrono::milliseconds timeout);
  absl::Status Handoff(uint64_t to_worker);

  // Returns when it has begun.
  absl::StatusOr<v1::Upgrade> StartUpgrade(UpgradeOptions options);
  // The upgrade when `wanted` holds of it; control may be away in between.
  absl::StatusOr<v1::Upgrade> WaitForUpgrade(uint64_t id, const std::string& what,
                                             const std::function<bool(const v1::Upgrade&)>& wanted);
  absl::StatusOr<v1::Upgrade> WaitUntilUpgradeEnds(uint64_t id);

  // Writes the configuration file. `service`: fields besides those that all have. `more`: what
  // follows the service.
  absl::Status WriteConfig(const std::string& service = "", const std::string& more = "") const;
  // Kills batond, whose keeper goes on.
  absl::Status KillBatond();
  // Starts the next batond, which goes on with that keeper.
  absl::Status StartBatondAgain();
  // Stops batond and everything it started.
  absl::Status Stop();

  // Logs of all processes, their ends, to standard error.
  void DumpLogs() const;

 private:
  Cluster(ClusterOptions options, TempDirectory directory)
      : options_(std::move(options)), directory_(std::move(directory)) {}
  absl::Status StartBatond();
  void AddOptions(std::vector<std::string>* arguments) const;
  void AddNative(std::vector<std::string>* arguments) const;
  std::string NewLog(const std::string& program);

  const ClusterOptions options_;
  const TempDirectory directory_;
  std::unique_ptr<ChildProcess> batond_;
  std::unique_ptr<OperatorClient> operators_;
  std::unique_ptr<KeeperView> keeper_;
  uint16_t port_ = 0;
  std::vector<std::string> logs_;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_CLUSTER_H_
