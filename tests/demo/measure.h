// One event under traffic, with what the peers saw of it.
#ifndef TESTS_DEMO_MEASURE_H_
#define TESTS_DEMO_MEASURE_H_

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/demo/scenario.h"
#include "tests/harness/binaries.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"

namespace baton::demo {

struct Expectation {
  uint32_t connections = 0;
  int version = 0;           // that every connection's latest reply names afterwards; 0: any
  bool disconnects = false;  // are allowed
};

// Returns what the clients of a service without Baton are started with, but for its address.
// `directory` gets their log.
inline absl::StatusOr<harness::PeerOptions> ClientsFor(const DemoOptions& options,
                                                       const harness::TempDirectory& directory,
                                                       uint64_t rate) {
  harness::PeerOptions peer;
  BATON_ASSIGN_OR_RETURN(peer.program,
                         harness::Binaries(options.binary_directory).Find("baton-peer"));
  peer.log_path = directory.File("peer.log");
  peer.fabric = options.fabric;
  peer.connections = options.connections;
  peer.rate = rate;
  peer.arguments = options.PriorityArguments();
  return peer;
}

// The event before `event`: how silent the connections are in a time as long as it takes to answer
// all of them, when nothing is done to the service.
inline absl::Status MeasureQuiet(harness::PeerProcess& peer, std::vector<Event>* events) {
  BATON_RETURN_IF_ERROR(peer.Mark("before-quiet").status());
  const uint64_t start = MonotonicNanoseconds() / 1000;
  BATON_RETURN_IF_ERROR(peer.Settle());
  BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, peer.Mark("quiet"));
  events->push_back({EventKind::kQuiet, start, window.max_silence_us, ""});
  return absl::OkStatus();
}

inline absl::Status Judge(const harness::PeerWindow& window, const Expectation& expectation) {
  const uint32_t connections = expectation.connections;
  if (window.connections_with_reply != connections) {
    return absl::InternalError(absl::StrCat("only ", window.connections_with_reply, " of ",
                                            connections, " connections were answered"));
  }
  if (!expectation.disconnects && window.disconnects != 0) {
    return absl::InternalError(absl::StrCat(window.disconnects, " disconnects"));
  }
  const int version = expectation.version;
  if (version != 0 && window.last_versions[version] != connections) {
    return absl::InternalError(absl::StrCat("only ", window.last_versions[version], " of ",
                                            connections, " connections were answered by version ",
                                            version));
  }
  return absl::OkStatus();
}

// Does `action` to the service and waits until every connection was answered a request made after
// it. An error of the action or of the traffic is in the event's problem, and returned.
inline absl::Status Measure(harness::PeerProcess& peer, EventKind kind,
                            const Expectation& expectation,
                            const std::function<absl::Status()>& action, Progress* progress,
                            std::vector<Event>* events) {
  BATON_RETURN_IF_ERROR(MeasureQuiet(peer, events));
  progress->Begin(kind);
  Event& event = events->emplace_back();
  event.kind = kind;
  event.monotonic_us = MonotonicNanoseconds() / 1000;
  const auto run = [&]() -> absl::Status {
    BATON_RETURN_IF_ERROR(action());
    BATON_RETURN_IF_ERROR(peer.Settle());
    BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, peer.Mark(EventKindName(kind)));
    event.silence_us = window.max_silence_us;
    return Judge(window, expectation);
  };
  absl::Status status = run();
  if (!status.ok()) event.problem = std::string(status.message());
  progress->End(event);
  return status;
}

// Traffic without events between two of them, so that the picture shows both.
inline void LetTrafficRun() { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }

}  // namespace baton::demo

#endif  // TESTS_DEMO_MEASURE_H_
