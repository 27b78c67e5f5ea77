// A Baton of many services with the ledger's workers and idle connections, on the soft device.
//
// Every service is of the same shape. Everything is bounded in time; DumpLogs shows what went
// wrong. Thread-safety: none (ChildProcess).
#ifndef TESTS_BENCH_FLEET_H_
#define TESTS_BENCH_FLEET_H_

#include <sys/types.h>

#include <cstdint>
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

namespace baton::bench {

// Raises RLIMIT_NOFILE to its hard limit, for a connection of the soft device takes a descriptor
// here and one in its keeper, which inherits the limit. kResourceExhausted: that is too low.
absl::Status RaiseDescriptorLimit(uint64_t connections);

struct FleetOptions {
  harness::Binaries binaries;
  uint32_t services = 1;
  uint32_t workers = 2;      // of each service: an owner and hot standbys
  uint32_t connections = 8;  // that idle, over all services
  uint32_t queue_depth = 8;  // of sends and of receives
};

class Fleet {
 public:
  // All services, with all their workers ready.
  static absl::StatusOr<std::unique_ptr<Fleet>> Start(FleetOptions options);
  ~Fleet();

  // Makes the idle connections. Each has been answered; then their peers are stopped.
  absl::Status Connect();
  absl::StatusOr<uint64_t> CountConnections();

  // A ledger of that service, ready; further than `workers` there is room for one.
  struct Worker {
    std::unique_ptr<harness::ChildProcess> process;
    uint64_t id = 0;
  };
  absl::StatusOr<Worker> StartWorker(uint32_t service);
  // Until its keeper knows it no more.
  absl::Status StopWorker(uint32_t service, Worker worker);
  // A peer of that service with connections of its own, kSpareConnections at most.
  static constexpr uint32_t kSpareConnections = 16;
  absl::StatusOr<std::unique_ptr<harness::PeerProcess>> StartPeer(uint32_t service,
                                                                  harness::PeerOptions options);

  const FleetOptions& options() const { return options_; }
  harness::OperatorClient& operators() { return *operators_; }
  static std::string NameOf(uint32_t service);
  std::string SocketOf(uint32_t service) const;
  const std::vector<Worker>& WorkersOf(uint32_t service) const {
    return services_[service].workers;
  }

  struct Processes {
    pid_t batond = 0, control = 0;
    std::vector<pid_t> keepers, drivers, workers;  // by service
    std::vector<pid_t> brokers;                    // and their twins

    std::vector<pid_t> All() const;
  };
  absl::StatusOr<Processes> Servers();

  void DumpLogs() const;

 private:
  struct ServiceState {
    uint16_t port = 0;
    std::vector<Worker> workers;
  };

  Fleet(FleetOptions options, harness::TempDirectory directory)
      : options_(std::move(options)), directory_(std::move(directory)) {}

  uint32_t ConnectionsOf(uint32_t service) const;
  absl::Status WriteConfiguration(const std::string& path) const;
  absl::Status StartBatond();
  absl::Status StartWorkers();
  absl::StatusOr<std::unique_ptr<harness::ChildProcess>> SpawnWorker(uint32_t service);
  absl::Status AwaitWorker(uint32_t service, Worker* worker);
  static absl::Status AwaitSilence(harness::PeerProcess& peer);
  absl::StatusOr<bool> IsQuiet(uint32_t service);
  absl::Status ConnectIdle(uint32_t service, uint32_t connections);
  std::string NewLog(const std::string& program);

  const FleetOptions options_;
  const harness::TempDirectory directory_;
  std::unique_ptr<harness::ChildProcess> batond_;
  std::unique_ptr<harness::OperatorClient> operators_;
  std::vector<ServiceState> services_;
  std::vector<std::unique_ptr<harness::PeerProcess>> idle_;
  std::vector<std::string> logs_;
};

// What a process holds of the machine.
struct Footprint {
  // Heap, stacks and written data: nobody else's. An arena is none of it, nor is program text.
  uint64_t private_bytes = 0;
  uint64_t resident_bytes = 0;      // with all that it shares
  uint64_t proportional_bytes = 0;  // with its part of what it shares
  uint32_t descriptors = 0;
};
// kNotFound: there is no such process.
absl::StatusOr<Footprint> ReadFootprint(pid_t pid);

}  // namespace baton::bench

#endif  // TESTS_BENCH_FLEET_H_
