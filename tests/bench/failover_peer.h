// The peer of a service that fails over: many connections, of which a few are active.
//
// Thread-safety: none (ChildProcess).
#ifndef TESTS_BENCH_FAILOVER_PEER_H_
#define TESTS_BENCH_FAILOVER_PEER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/harness/peer_process.h"
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
struct Blackout {
  double silence = 0;  // the longest of an active connection, to the successor's first reply
  double noticed = 0;  // from the event to the noticed death, or to the release
  double inside = 0;   // from there to the successor's first commit
  double reply = 0;    // what else there is of the silence
  double all = 0;      // from the event until every connection, active or not, was answered
  double window = 0;   // from the event to the successor's first replies on all active connections
  double quiet = 0;    // the longest silence in a window as long in which nothing happened
};

// Owners take turns, and say who they are in their replies.
inline int OtherVersion(int version) { return 3 - version; }

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
  absl::StatusOr<Blackout> Measure(const std::function<absl::Status()>& action, int version);
  absl::Status MeasureQuiet(Blackout* blackout);
  // Until each connection has one to the service that stands by.
  absl::Status AwaitSpares();

  // An error: not everything was answered once, or a connection was lost that may not be.
  absl::Status Stop();

 private:
  // Until `version` has answered every active connection a request made after this call.
  absl::Status AwaitSuccessor(int version, Blackout* blackout);
  absl::Status RestAndMark();
  absl::Status Judge(const harness::PeerWindow& window) const;

  const std::unique_ptr<harness::PeerProcess> process_;
  const uint32_t connections_;
  const uint32_t active_;
  const bool reconnect_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_FAILOVER_PEER_H_
