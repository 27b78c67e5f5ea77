// The best that clients can do without Baton: two processes of the ledger that listen at different
// ports. One serves. The other one stands by, and each client has a spare connection to it.
//
// Thread-safety: none (ChildProcess).
#ifndef TESTS_HARNESS_STANDBY_PAIR_H_
#define TESTS_HARNESS_STANDBY_PAIR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/harness/child_process.h"
#include "tests/harness/peer_process.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::harness {

struct StandbyPairOptions {
  std::string binary_directory;  // as Binaries takes it
  std::string log_path;          // of both processes
  verbs::testing::Fabric fabric;
  uint32_t connections = 1;            // of each process, at most
  std::vector<std::string> arguments;  // further ones of both processes
};

class StandbyPair {
 public:
  // Returns when both processes listen.
  static absl::StatusOr<std::unique_ptr<StandbyPair>> Start(StandbyPairOptions options);

  // Has the peer connect to both.
  void SetAddresses(PeerOptions* peer) const;
  // The version in the standby's replies; 1 or 2, and never that of the process that serves.
  int standby_version() const { return standby_.version; }

  // Starts a standby if there is none, at the port of the one before, and returns when it listens.
  absl::Status StandBy();

  // Kills the process that serves. Does not wait for its end.
  absl::Status Crash();
  // After Crash(): returns when that process is gone.
  absl::Status AwaitEnd();
  // Has the process that serves tell its clients to go on at the standby. It answers what has come.
  absl::Status Drain();
  // REQUIRES: Crash() or Drain() was called, and every client has moved. Waits for the end of the
  // process that served, and the standby takes its place. Then there is no standby.
  absl::Status Succeed();

 private:
  struct Server {
    std::unique_ptr<ChildProcess> process;
    uint16_t port = 0;  // 0 until the first process has chosen one
    int version = 0;
  };

  explicit StandbyPair(StandbyPairOptions options) : options_(std::move(options)) {}
  absl::Status StartServer(Server* server) const;

  const StandbyPairOptions options_;
  Server serving_, standby_;
  bool drained_ = false;  // the process that serves is to be ended
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_STANDBY_PAIR_H_
