#include "tests/bench/failover_peer.h"

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "tests/bench/checked_stop.h"
#include "tests/harness/json_object.h"

namespace baton::bench {
namespace {

// For as many connections as are made anew one after the other.
constexpr std::chrono::seconds kSettle{60};

// What ten thousand connections that were all asked at once leave behind, such as delayed
// acknowledgements, and the start of a process: they are not the event's.
constexpr std::chrono::milliseconds kRest{250};

double Milliseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-6; }

}  // namespace

harness::PeerOptions FailoverPeer::Load(const FailoverOptions& options, uint32_t connections) {
  harness::PeerOptions load;
  load.fabric = options.fabric;
  load.connections = connections;
  load.active = options.ActiveOf(connections);
  load.window = 1;
  load.rate = options.rate;
  load.arguments = options.PriorityArguments();
  return load;
}

absl::StatusOr<Blackout> FailoverPeer::Measure(const std::function<absl::Status()>& action,
                                               int version) {
  Blackout blackout;
  BATON_RETURN_IF_ERROR(process_->Settle(kSettle));
  BATON_RETURN_IF_ERROR(RestAndMark());
  const uint64_t start = MonotonicNanoseconds();
  BATON_RETURN_IF_ERROR(action());
  // The others are asked afterwards: their requests would be in the way of those that are measured.
  BATON_RETURN_IF_ERROR(AwaitSuccessor(version, &blackout));
  BATON_RETURN_IF_ERROR(process_->Settle(kSettle));
  blackout.all = Milliseconds(MonotonicNanoseconds() - start);
  BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, process_->Mark("all"));
  if (window.last_versions[version] != connections_) {
    return absl::InternalError(absl::StrCat("only ", window.last_versions[version], " of ",
                                            connections_,
                                            " connections were answered by the successor"));
  }
  BATON_RETURN_IF_ERROR(Judge(window));
  return blackout;
}

// One that was signalled may still have answered what came before its death.
absl::Status FailoverPeer::AwaitSuccessor(int version, Blackout* blackout) {
  const auto deadline = std::chrono::steady_clock::now() + kSettle;
  do {
    BATON_RETURN_IF_ERROR(process_->SettleActive(kSettle));
    BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, process_->Mark("event"));
    BATON_RETURN_IF_ERROR(Judge(window));
    blackout->silence = std::max(blackout->silence, window.max_silence_us / 1000);
    blackout->window += window.seconds * 1000;
    if (window.last_versions[version] == active_) return absl::OkStatus();
  } while (std::chrono::steady_clock::now() < deadline);
  return absl::DeadlineExceededError("the former owner answers on");
}

absl::Status FailoverPeer::MeasureQuiet(Blackout* blackout) {
  BATON_RETURN_IF_ERROR(RestAndMark());
  // The window is this time itself: nothing is waited for.
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(blackout->window));
  BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, process_->Mark("quiet"));
  blackout->quiet = window.max_silence_us / 1000;
  return Judge(window);
}

absl::Status FailoverPeer::AwaitSpares() { return process_->AwaitSpares(connections_, kSettle); }

absl::Status FailoverPeer::RestAndMark() {
  std::this_thread::sleep_for(kRest);
  return process_->Mark("rest").status();
}

absl::Status FailoverPeer::Judge(const harness::PeerWindow& window) const {
  if (reconnect_ || window.disconnects == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(window.disconnects, " connections were lost"));
}

absl::Status FailoverPeer::Stop() { return StopChecked(*process_).status(); }

}  // namespace baton::bench
