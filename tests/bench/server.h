// The servers that are compared: raw verbs, and a worker of Baton, brokered or native.
//
// Thread-safety: none (ChildProcess).
#ifndef TESTS_BENCH_SERVER_H_
#define TESTS_BENCH_SERVER_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"

namespace baton::bench {

// kRelayed: raw verbs in one process, and the server in another (raw_server.cc).
enum class SideName : uint8_t { kPolling, kEvents, kBrokered, kNative, kRelayed };
inline constexpr std::array<SideName, 4> kSides = {SideName::kPolling, SideName::kEvents,
                                                   SideName::kBrokered, SideName::kNative};
constexpr const char* NameOf(SideName side) {
  switch (side) {
    case SideName::kPolling:
      return "polling";
    case SideName::kEvents:
      return "events";
    case SideName::kRelayed:
      return "relayed";
    case SideName::kBrokered:
      return "brokered";
    case SideName::kNative:
      return "native";
  }
  return "";
}

// A program without Baton takes --host and, to poll, --poll, or --relay; a worker is one of
// worker_main.h, and there as an object, too. Both say "bench server ready port=N".
struct ServerOptions {
  std::string device = "rdma";
  std::string host;
  std::string binary_directory;
  std::string raw_program;
  std::string worker_program;
  std::vector<std::string> raw_arguments;
  std::vector<std::string> worker_arguments;
  // The service of a worker takes these. Programs without Baton do not.
  uint32_t max_connections = 0;
  uint32_t queue_depth = 0;
  std::vector<std::string> batond_arguments = {};
};

class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(SideName side, const ServerOptions& options);

  uint16_t port() const { return port_; }
  // Those that serve, with their children: not those that manage.
  const std::vector<pid_t>& processes() const { return processes_; }
  void DumpLogs() const;

 private:
  absl::Status Open(SideName side, const ServerOptions& options);
  absl::Status StartRaw(const ServerOptions& options, const char* how);
  absl::Status StartBrokered(const ServerOptions& options);
  absl::Status StartNative(const ServerOptions& options);
  absl::Status StartProcess(const harness::ChildOptions& program);
  absl::Status StartCluster(const ServerOptions& options,
                            std::vector<std::string> batond_arguments);
  absl::Status FindNativeOwner();

  std::unique_ptr<harness::Cluster> cluster_;
  std::unique_ptr<harness::ChildProcess> process_;
  std::vector<pid_t> processes_;
  uint16_t port_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_SERVER_H_
