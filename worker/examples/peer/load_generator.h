// Drives many ledger accounts over one device of its own, and checks every reply.
//
// Load: with a rate, requests come due at that rate over the active connections in turn, in small
// groups per tick; without a rate, each active connection keeps its window full. An idle connection
// sends one request for each settle. One thread; nothing here blocks.
#ifndef WORKER_EXAMPLES_PEER_LOAD_GENERATOR_H_
#define WORKER_EXAMPLES_PEER_LOAD_GENERATOR_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/latency_histogram.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"
#include "worker/examples/peer/reply_checker.h"
#include "worker/examples/peer/timeline.h"

namespace baton::peer {

struct LoadOptions {
  verbs::Address address;
  uint32_t connections = 1;
  uint32_t window = 8;  // requests open on each connection, at most
  // Connections that carry load and whose silences are measured, spread over all. 0: all of them.
  uint32_t active = 0;
  uint64_t rate = 0;            // requests per second over the active ones; 0: as fast as possible
  uint32_t message_bytes = 64;  // of requests
  // A lost connection is made anew at once, and its account resumed (ledger_protocol.h); attempts
  // that fail are repeated after reconnect_interval_us. For a service without Baton.
  bool reconnect = false;
  // Another service that stands by; requires `reconnect`. Each connection has a spare one to it.
  // The spare takes over when the connection's service says that it moves, or when the connection
  // is lost; then all active connections move. New spare ones go to the other of the two services.
  std::optional<verbs::Address> standby;
  uint32_t reconnect_interval_us = 500;
  // For so long after the start a connection that is refused (kUnavailable: nobody listens yet) is
  // tried again. A connection that the service rejects is not.
  uint32_t first_connect_patience_ms = 0;
  uint32_t reply_timeout_ms = 10'000;  // then the request is lost
  uint64_t client_base = 1;            // connection i is client client_base + i
};

// A histogram takes 15 KiB, so not every one of many connections has its own.
inline constexpr uint32_t kListedConnections = 256;
inline constexpr uint32_t kVersions = 8;  // versions of the service's binary that are told apart

struct WindowSummary {
  uint64_t max_silence = 0;  // nanoseconds, over the active connections
  uint32_t worst_connection = 0;
  uint64_t messages = 0;
  uint32_t connections_with_reply = 0;
  uint64_t disconnects = 0;
  std::array<uint32_t, kVersions> last_versions =
      {};               // connections by their latest reply's version
  uint32_t spares = 0;  // established at the window's end
  uint64_t nanoseconds = 0;
};

struct ConnectionSummary {
  LatencyHistogram latency;
  uint64_t messages = 0;
  uint64_t max_silence = 0;
  Defects defects;
};

struct Summary {
  uint32_t connections = 0;
  uint32_t established = 0;  // once, at least
  uint64_t sent = 0;
  uint64_t messages = 0;  // requests answered
  Defects defects;
  uint64_t disconnects = 0;
  uint64_t connect_failures = 0;  // attempts
  uint64_t reconnects = 0;
  uint64_t retried = 0;    // messages sent again after a reconnect
  uint64_t throttled = 0;  // requests that came due while every window was full: never made
  uint64_t max_silence = 0;
  std::array<uint64_t, kVersions> versions = {};  // replies by version
  LatencyHistogram latency;
  std::vector<ConnectionSummary> per_connection;  // of the first kListedConnections
};

class LoadGenerator {
 public:
  static absl::StatusOr<std::unique_ptr<LoadGenerator>> Create(
      std::unique_ptr<verbs::Device> device, const LoadOptions& options);
  ~LoadGenerator();

  // Begins to connect all connections. Each begins to send when it is established.
  absl::Status Start();

  // Does everything that can be done now. Returns whether the caller may sleep then. After an error
  // the device has failed, and the generator is at its end.
  absl::StatusOr<bool> Turn();
  // Readable when Turn has something to do. Turn must also be called once per tick_nanoseconds(),
  // which depends on the rate: a tick is at most half of the time from one request to the next.
  int event_fd() const { return device_->event_fd(); }
  uint64_t tick_nanoseconds() const;

  bool AllEstablished() const { return established_ == connections_.size(); }
  // Returns why a connection ended or could not be made. Without `reconnect` that is final.
  const absl::Status& connection_error() const { return connection_error_; }

  void SetRate(uint64_t rate);
  void StopSending() { sending_ = false; }
  // Returns true if no request is open.
  bool IsDrained() const;
  // Counts the requests that are still open as lost.
  void GiveUp();

  // Ends the current window and begins the next.
  WindowSummary EndWindow();
  // IsSettled becomes true when each living connection, or each active one, has received a reply to
  // a request that it made after this call.
  enum class Settling : uint8_t { kAll, kActive };
  void BeginSettle(Settling which = Settling::kAll);
  bool IsSettled() const { return unsettled_ == 0; }

  void SetTimeline(std::unique_ptr<Timeline> timeline) { timeline_ = std::move(timeline); }
  // Called with a line about each defect, for people.
  void SetDefectSink(std::function<void(const std::string&)> sink) { sink_ = std::move(sink); }

  Summary Summarize() const;

 private:
  struct Peer;
  LoadGenerator(std::unique_ptr<verbs::Device> device, const LoadOptions& options,
                examples::SharedMemory memory);

  absl::Status Prepare();
  absl::Status Connect(Peer& peer);
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> MakeQueuePair(const Peer& peer,
                                                                  uint32_t incarnation);
  absl::Status PostReceive(verbs::QueuePair& queue_pair, const Peer& peer, uint64_t wr_id);
  const verbs::Address& AddressOf(uint32_t place) const {
    return place == 0 ? options_.address : *options_.standby;
  }
  absl::StatusOr<bool> PollCompletions();  // returns whether there were any
  absl::Status OnCompletion(const verbs::Completion& completion);
  absl::Status OnReply(Peer& peer, uint32_t slot, uint32_t length);
  void RecordReply(Peer& peer, const ReplyChecker::Verdict& verdict, uint64_t now);
  absl::Status HandleEvents();
  absl::Status OnEstablished(Peer& peer);
  absl::Status OnConnectionLost(Peer& peer, const absl::Status& why);
  absl::Status ConnectSpares(uint64_t now);
  void OnSpareEvent(Peer& peer, bool established);
  bool MayMove(const Peer& peer) const;
  void MoveToSpare(Peer& peer);
  absl::Status FollowLoss(Peer& lost);
  absl::Status OnTick(uint64_t now);
  void ExpireSome(uint64_t now);
  std::deque<Peer*>& DownLike(const Peer& peer);
  bool MayConnectAgain() const {
    return options_.reconnect || options_.first_connect_patience_ms > 0;
  }
  void WaitToConnect(Peer& peer, uint64_t until);
  absl::Status ConnectDue(uint64_t now);
  absl::Status ConnectDue(std::deque<Peer*>& down, uint64_t now);
  absl::Status Pace(uint64_t now);
  absl::Status AskIdle(uint64_t now);
  absl::Status Request(Peer& peer, uint64_t now);
  absl::Status SendUnsent(Peer& peer);
  void AdvanceTimeline(uint64_t now);

  uint64_t ReceiveOffset(const Peer& peer, uint32_t slot) const;
  uint64_t SendOffset(const Peer& peer, uint64_t sequence) const;

  const LoadOptions options_;
  const uint32_t receive_slots_;  // more than the window, so that duplicates are seen
  const uint32_t send_slots_;
  std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::vector<std::unique_ptr<Peer>> connections_;
  std::vector<Peer*> active_;
  std::deque<Peer*> to_ask_;  // idle ones, for a settle
  // Connections to be made, the first due at the front. Active ones come before idle ones.
  std::deque<Peer*> down_active_, down_idle_;
  std::deque<Peer*> without_spare_;
  uint32_t spares_ = 0;  // established
  uint32_t home_ = 0;    // the service that is to be asked: 0 for `address`, 1 for `standby`
  std::unique_ptr<Timeline> timeline_;
  std::function<void(const std::string&)> sink_;

  bool sending_ = true;
  uint64_t rate_ = 0;
  uint64_t pace_start_ = 0;   // when `rate_` was set
  uint64_t pace_issued_ = 0;  // requests since then
  uint32_t next_active_ = 0;  // whose turn it is
  uint32_t connecting_ = 0;
  uint32_t established_ = 0;
  uint32_t unsettled_ = 0;  // connections that a settle still waits for
  uint64_t next_tick_ = 0;
  size_t next_expiry_ = 0;  // index
  uint64_t window_start_ = 0;
  uint64_t window_number_ = 1;
  WindowSummary window_;  // without what EndWindow adds
  std::array<uint32_t, kVersions> last_versions_ = {};
  absl::Status connection_error_;
  uint64_t patient_until_ = 0;
  bool has_waited_ = false;  // for the service to listen
  Summary totals_;           // without what each connection counts
};

}  // namespace baton::peer

#endif  // WORKER_EXAMPLES_PEER_LOAD_GENERATOR_H_
