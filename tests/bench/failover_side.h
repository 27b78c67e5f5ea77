// The sides of the failover suite: a service on Baton, and the same one without. Its clients
// connect anew to a successor that waits warm, or they have connections already to another one that
// stands by.
//
// Thread-safety: none (ChildProcess).
#ifndef TESTS_BENCH_FAILOVER_SIDE_H_
#define TESTS_BENCH_FAILOVER_SIDE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/failover_peer.h"
#include "tests/harness/cluster.h"
#include "tests/harness/standby_pair.h"

namespace baton::bench {

enum class FailoverEvent : uint8_t {
  kHandoff,    // planned, to a worker that stands by
  kHotCrash,   // the owner is killed, and one stands by
  kColdCrash,  // the owner is killed; when it is dead another one is started
  kHang,       // the owner is stopped, and one stands by
};

class BatonSide {
 public:
  static absl::StatusOr<std::unique_ptr<BatonSide>> Start(const FailoverOptions& options,
                                                          uint32_t connections);

  // `ballast_mib`: memory of the workers' own. Everything that the event needs is ready before.
  absl::StatusOr<Blackout> Measure(FailoverEvent event, uint32_t ballast_mib);
  absl::Status Finish();

 private:
  struct Worker {
    std::unique_ptr<harness::LedgerWorker> ledger;
    int version = 1;  // as its replies name it
    uint32_t ballast_mib = 0;

    uint64_t id() const { return ledger->id; }
    harness::ChildProcess& process() { return *ledger->process; }
  };

  BatonSide(const FailoverOptions& options, uint32_t connections)
      : options_(options), connections_(connections) {}

  absl::Status Open();
  absl::StatusOr<std::unique_ptr<Worker>> StartWorker(int version, uint32_t ballast_mib,
                                                      bool await_control);
  absl::Status Retire(std::unique_ptr<Worker> worker);
  absl::Status Prepare(FailoverEvent event, uint32_t ballast_mib);
  absl::StatusOr<Blackout> MeasurePrepared(FailoverEvent event);
  absl::Status Do(FailoverEvent event);
  absl::Status AfterDoing(FailoverEvent event);
  absl::Status AddParts(FailoverEvent event, int64_t start_unix_micros, Blackout* blackout);

  const FailoverOptions options_;
  const uint32_t connections_;
  std::unique_ptr<harness::Cluster> cluster_;
  std::unique_ptr<Worker> owner_;
  std::unique_ptr<Worker> standby_;
  std::unique_ptr<FailoverPeer> peer_;
};

class ReconnectSide {
 public:
  static absl::StatusOr<std::unique_ptr<ReconnectSide>> Start(const FailoverOptions& options,
                                                              uint32_t connections,
                                                              uint32_t ballast_mib);

  // The process is killed.
  absl::StatusOr<Blackout> Measure();
  absl::Status Finish() { return peer_->Stop(); }

 private:
  ReconnectSide(const FailoverOptions& options, uint32_t connections, uint32_t ballast_mib,
                harness::TempDirectory directory)
      : options_(options),
        connections_(connections),
        ballast_mib_(ballast_mib),
        directory_(std::move(directory)) {}

  absl::Status Open();
  // `predecessor`: whose end it waits for; 0: none.
  absl::StatusOr<std::unique_ptr<harness::ChildProcess>> StartServer(pid_t predecessor,
                                                                     int version) const;
  absl::Status WaitUntilItListens(harness::ChildProcess& server);

  const FailoverOptions options_;
  const uint32_t connections_;
  const uint32_t ballast_mib_;
  const harness::TempDirectory directory_;
  uint16_t port_ = 0;
  int version_ = 1;  // of the server
  std::unique_ptr<harness::ChildProcess> server_;
  std::unique_ptr<FailoverPeer> peer_;
};

enum class StandbyEvent : uint8_t {
  kCrash,  // the service is killed
  kDrain,  // it answers what has come, tells its clients to go on elsewhere, and ends afterwards
};

// The best that clients can do without Baton: each connection has another one, made before, to a
// second process that listens elsewhere.
class StandbySide {
 public:
  static absl::StatusOr<std::unique_ptr<StandbySide>> Start(const FailoverOptions& options,
                                                            uint32_t connections,
                                                            uint32_t ballast_mib);

  absl::StatusOr<Blackout> Measure(StandbyEvent event);
  absl::Status Finish() { return peer_->Stop(); }

 private:
  explicit StandbySide(harness::TempDirectory directory) : directory_(std::move(directory)) {}

  absl::Status Open(const FailoverOptions& options, uint32_t connections, uint32_t ballast_mib);

  const harness::TempDirectory directory_;
  std::unique_ptr<harness::StandbyPair> pair_;
  std::unique_ptr<FailoverPeer> peer_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_FAILOVER_SIDE_H_
