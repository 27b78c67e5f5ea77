// The sides of the failover suite: a service on Baton, and the same one without. Its clients
// connect anew to a successor that waits warm, or they have connections already to another one that
// stands by.
//
// Thread-safety: none (ChildProcess).
#ifndef TESTS_BENCH_FAILOVER_SIDE_H_
#define TESTS_BENCH_FAILOVER_SIDE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/harness/cluster.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/standby_pair.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::bench {

struct FailoverOptions {
  std::string binary_directory;
  verbs::testing::Fabric fabric;
  uint32_t active = 8;   // connections that are never without a request for long
  uint64_t rate = 4000;  // of requests per second, over those
  uint32_t hang_timeout_ms = 250;
  int realtime_priority = -1;  // of all that serves and of the peer; 0: none; -1: to be chosen

  uint32_t ActiveOf(uint32_t connections) const { return std::min(active, connections); }
  std::vector<std::string> PriorityArguments() const {
    if (realtime_priority <= 0) return {};
    return {"--realtime-priority", std::to_string(realtime_priority)};
  }
};

// What one event was to the peer, in milliseconds.
struct Silence {
  double longest = 0;  // of an active connection, to the successor's first reply
  double noticed = 0;  // from the event to the noticed death, or to the release
  double inside = 0;   // from there to the successor's first commit
  double reply = 0;    // what else there is of the silence
  double all = 0;      // from the event until every connection, active or not, was answered
  double window = 0;   // from the event to the successor's first replies on all active connections
  double quiet = 0;    // the longest silence in a window as long in which nothing happened
};

// Owners take turns, and say who they are in their replies.
inline int OtherVersion(int version) { return 3 - version; }

// The peer of a service that fails over: many connections, of which a few are active.
class FailoverPeer {
 public:
  // To start the process with.
  static harness::PeerOptions Load(const FailoverOptions& options, uint32_t connections);

  // `reconnect`: its connections may be lost.
  FailoverPeer(std::unique_ptr<harness::PeerProcess> process, const FailoverOptions& options,
               uint32_t connections, bool reconnect)
      : process_(std::move(process)),
        connections_(connections),
        active_(options.ActiveOf(connections)),
        reconnect_(reconnect) {}

  // Does `action` to the service, after which `version` answers, and no connection's latest reply
  // is of it yet. What the service alone can tell is left out, and what MeasureQuiet adds.
  absl::StatusOr<Silence> Measure(const std::function<absl::Status()>& action, int version);
  absl::Status MeasureQuiet(Silence* silence);
  // Until each connection has one to the service that stands by.
  absl::Status AwaitSpares();

  // An error: not everything was answered once, or a connection was lost that may not be.
  absl::Status Stop();

 private:
  // Until `version` has answered every active connection a request made after this call.
  absl::Status AwaitSuccessor(int version, Silence* silence);
  absl::Status RestAndMark();
  absl::Status Judge(const harness::PeerWindow& window) const;

  const std::unique_ptr<harness::PeerProcess> process_;
  const uint32_t connections_;
  const uint32_t active_;
  const bool reconnect_;
};

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
  absl::StatusOr<Silence> Measure(FailoverEvent event, uint32_t ballast_mib);
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
  absl::StatusOr<Silence> MeasurePrepared(FailoverEvent event);
  absl::Status Do(FailoverEvent event);
  absl::Status AfterDoing(FailoverEvent event);
  absl::Status AddParts(FailoverEvent event, int64_t start_unix_micros, Silence* silence);

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
  absl::StatusOr<Silence> Measure();
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

  absl::StatusOr<Silence> Measure(StandbyEvent event);
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
