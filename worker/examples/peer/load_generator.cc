#include "worker/examples/peer/load_generator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::peer {
namespace {

constexpr uint64_t kShortestTickNanoseconds = 200'000;
constexpr uint64_t kLongestTickNanoseconds = 2'000'000;
// A spare connection is made so long after its predecessor is gone, and tried again after as long,
// so that it does not disturb what is measured around that time.
constexpr uint64_t kSpareNanoseconds = 100'000'000;
constexpr uint64_t kPatientIntervalNs = 100'000'000;
constexpr size_t kTicksPerExpiry = 500;  // of all connections, at most
constexpr uint32_t kPollBatch = 64;
// Connections that are made, or idle ones that send for a settle, at once. More could overflow a
// backlog of the listener or the machine, and what is dropped there is retried late.
constexpr uint32_t kMaxAtOnce = 256;

// wr_id: bit 63 receive; bits 40..62 incarnation of the connection; 16..39 its index; 0..15 slot.
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
constexpr uint32_t kIncarnationMask = (1u << 23) - 1;
constexpr uint32_t kMaxConnections = 1u << 24;
constexpr uint32_t kMaxWindow = 1u << 14;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

struct LoadGenerator::Peer {
  enum class Phase : uint8_t { kConnecting, kUp, kDown, kEnded };

  Peer(uint32_t index, uint64_t client, uint32_t window) : index(index), checker(client, window) {
    if (index < kListedConnections) latency = std::make_unique<LatencyHistogram>();
  }

  const uint32_t index;
  bool active = false;
  uint32_t incarnation = 0;
  uint32_t incarnations = 0;  // grows with each queue pair
  uint32_t place = 0;         // like home_
  Phase phase = Phase::kDown;
  uint64_t retry_at = 0;  // kDown
  bool was_up = false;
  std::unique_ptr<verbs::QueuePair> queue_pair;
  std::unique_ptr<verbs::ConnectionId> id;  // after the queue pair, so destroyed before it

  // Its receives are in the same buffers. Nothing arrives on it while the other connection is used.
  struct Spare {
    bool up = false;
    uint64_t retry_at = 0;
    uint32_t incarnation = 0;
    std::unique_ptr<verbs::QueuePair> queue_pair;
    std::unique_ptr<verbs::ConnectionId> id;
  } spare;

  ReplyChecker checker;
  SilenceMeter silence;
  std::unique_ptr<LatencyHistogram> latency;  // null: this connection is not listed
  uint64_t messages = 0;
  uint64_t longest_silence = 0;
  uint64_t sent_highest = 0;  // sequence
  uint16_t last_version = 0;
  uint64_t last_window = 0;  // the last window with a reply
  uint64_t settle_from = 0;  // a reply to this sequence or a later one settles; 0: settled

  uint64_t WorkRequestId(bool receive, uint32_t slot) const {
    return WorkRequestId(receive, slot, incarnation);
  }
  uint64_t WorkRequestId(bool receive, uint32_t slot, uint32_t of) const {
    return (receive ? kReceiveBit : 0) | uint64_t{of & kIncarnationMask} << 40 |
           uint64_t{index} << 16 | slot;
  }
};

absl::StatusOr<std::unique_ptr<LoadGenerator>> LoadGenerator::Create(
    std::unique_ptr<verbs::Device> device, const LoadOptions& options) {
  if (options.message_bytes < ledger::kMinMessageBytes || options.message_bytes % 8 != 0 ||
      options.message_bytes > ledger::kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message size ", options.message_bytes, ": choose a multiple of 8 from ",
                     ledger::kMinMessageBytes, " to ", ledger::kMaxMessageBytes));
  }
  if (options.connections == 0 || options.connections >= kMaxConnections || options.window == 0 ||
      options.window > kMaxWindow) {
    return absl::InvalidArgumentError(
        "connections and window: at least 1 of each, and not more "
        "than 16 million connections with a window of 16384");
  }
  if (options.active > options.connections) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.active, " active connections: there are ", options.connections, " in all"));
  }
  const uint64_t per_connection =
      uint64_t{2} * options.window * (options.message_bytes + ledger::kReplyBytes) +
      uint64_t{4} * ledger::kReplyBytes;
  BATON_ASSIGN_OR_RETURN(
      examples::SharedMemory memory,
      examples::SharedMemory::Allocate(RoundUp(per_connection * options.connections, 4096)));
  std::unique_ptr<LoadGenerator> generator(
      new LoadGenerator(std::move(device), options, std::move(memory)));
  BATON_RETURN_IF_ERROR(generator->Prepare());
  return generator;
}

LoadGenerator::LoadGenerator(std::unique_ptr<verbs::Device> device, const LoadOptions& options,
                             examples::SharedMemory memory)
    : options_(options),
      receive_slots_(2 * options.window + 4),
      send_slots_(2 * options.window),
      device_(std::move(device)),
      memory_(std::move(memory)),
      rate_(options.rate) {}

LoadGenerator::~LoadGenerator() = default;

absl::Status LoadGenerator::Prepare() {
  BATON_ASSIGN_OR_RETURN(
      region_, device_->RegisterMemory(memory_.base(), memory_.bytes(), verbs::kLocalWrite));
  const uint64_t entries = uint64_t{receive_slots_ + send_slots_} * options_.connections;
  // A reconnect leaves flushed completions of the former queue pair behind.
  const uint64_t wanted = entries * (options_.standby ? 4 : MayConnectAgain() ? 2 : 1) + 64;
  const uint64_t limit = device_->limits().max_completion_queue_entries;
  if (wanted > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("these connections need a completion queue of ", wanted, " entries and ",
                     std::string(device_->name()), " has at most ", limit,
                     ": choose a smaller window or fewer connections"));
  }
  BATON_ASSIGN_OR_RETURN(queue_, device_->CreateCompletionQueue(static_cast<uint32_t>(wanted)));
  connections_.reserve(options_.connections);
  for (uint32_t i = 0; i < options_.connections; ++i) {
    connections_.push_back(std::make_unique<Peer>(i, options_.client_base + i, options_.window));
  }
  const uint64_t active = options_.active == 0 ? options_.connections : options_.active;
  for (uint64_t i = 0; i < active; ++i) {
    active_.push_back(connections_[i * options_.connections / active].get());
    active_.back()->active = true;
  }
  return absl::OkStatus();
}

uint64_t LoadGenerator::ReceiveOffset(const Peer& peer, uint32_t slot) const {
  return (uint64_t{peer.index} * receive_slots_ + slot) * ledger::kReplyBytes;
}

uint64_t LoadGenerator::SendOffset(const Peer& peer, uint64_t sequence) const {
  const uint64_t receive_area =
      uint64_t{options_.connections} * receive_slots_ * ledger::kReplyBytes;
  return receive_area +
         (uint64_t{peer.index} * send_slots_ + sequence % send_slots_) * options_.message_bytes;
}

absl::Status LoadGenerator::Start() {
  const uint64_t now = MonotonicNanoseconds();
  pace_start_ = now;
  window_start_ = now;
  patient_until_ = now + uint64_t{options_.first_connect_patience_ms} * 1'000'000;
  for (auto& peer : connections_) DownLike(*peer).push_back(peer.get());
  BATON_RETURN_IF_ERROR(ConnectDue(now));
  return queue_->RequestNotification();
}

absl::StatusOr<std::unique_ptr<verbs::QueuePair>> LoadGenerator::MakeQueuePair(
    const Peer& peer, uint32_t incarnation) {
  verbs::QueuePairOptions options;
  options.send_queue = queue_.get();
  options.receive_queue = queue_.get();
  options.max_send_requests = send_slots_;
  options.max_receive_requests = receive_slots_;
  BATON_ASSIGN_OR_RETURN(auto queue_pair, device_->CreateQueuePair(options));
  for (uint32_t slot = 0; slot < receive_slots_; ++slot) {
    BATON_RETURN_IF_ERROR(
        PostReceive(*queue_pair, peer, peer.WorkRequestId(true, slot, incarnation)));
  }
  return queue_pair;
}

absl::Status LoadGenerator::Connect(Peer& peer) {
  peer.id.reset();
  peer.queue_pair.reset();
  peer.incarnation = ++peer.incarnations;
  BATON_ASSIGN_OR_RETURN(peer.queue_pair, MakeQueuePair(peer, peer.incarnation));
  peer.phase = Peer::Phase::kConnecting;
  ++connecting_;
  absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> id =
      device_->Connect(AddressOf(peer.place), peer.queue_pair.get(), verbs::ConnectionParameters());
  if (!id.ok()) return OnConnectionLost(peer, id.status());
  peer.id = *std::move(id);
  peer.id->context = &peer;
  return absl::OkStatus();
}

absl::Status LoadGenerator::ConnectSpares(uint64_t now) {
  while (!without_spare_.empty() && now >= without_spare_.front()->spare.retry_at &&
         connecting_ < kMaxAtOnce) {
    Peer& peer = *without_spare_.front();
    without_spare_.pop_front();
    Peer::Spare& spare = peer.spare;
    spare.incarnation = ++peer.incarnations;
    BATON_ASSIGN_OR_RETURN(spare.queue_pair, MakeQueuePair(peer, spare.incarnation));
    ++connecting_;
    auto id = device_->Connect(AddressOf(1 - peer.place), spare.queue_pair.get(),
                               verbs::ConnectionParameters());
    if (!id.ok()) {
      OnSpareEvent(peer, /*established=*/false);
      continue;
    }
    spare.id = *std::move(id);
    spare.id->context = &peer;
  }
  return absl::OkStatus();
}

void LoadGenerator::OnSpareEvent(Peer& peer, bool established) {
  Peer::Spare& spare = peer.spare;
  spares_ -= spare.up ? 1 : 0;
  connecting_ -= spare.up ? 0 : 1;
  spare.up = established;
  if (established) {
    ++spares_;
    return;
  }
  spare.id.reset();
  spare.queue_pair.reset();
  spare.retry_at = MonotonicNanoseconds() + kSpareNanoseconds;
  without_spare_.push_back(&peer);
}

// Returns true if the connection's service is not home_ any more and owes it no reply.
bool LoadGenerator::MayMove(const Peer& peer) const {
  return peer.place != home_ && peer.spare.up && !peer.checker.HasUnderWay();
}

void LoadGenerator::MoveToSpare(Peer& peer) {
  Peer::Spare& spare = peer.spare;
  --spares_;
  peer.checker.Rewind();
  peer.id.reset();
  peer.queue_pair = std::move(spare.queue_pair);
  peer.id = std::move(spare.id);
  peer.incarnation = spare.incarnation;
  peer.place = 1 - peer.place;
  spare.up = false;
  spare.retry_at = MonotonicNanoseconds() + kSpareNanoseconds;
  without_spare_.push_back(&peer);
}

// The first loss shows that the service is gone, so the active connections move at once and do not
// wait for their own loss.
absl::Status LoadGenerator::FollowLoss(Peer& lost) {
  home_ = 1 - lost.place;
  MoveToSpare(lost);
  BATON_RETURN_IF_ERROR(SendUnsent(lost));
  for (Peer* peer : active_) {
    if (peer->place == home_ || !peer->spare.up) continue;
    MoveToSpare(*peer);
    BATON_RETURN_IF_ERROR(SendUnsent(*peer));
  }
  return absl::OkStatus();
}

absl::Status LoadGenerator::PostReceive(verbs::QueuePair& queue_pair, const Peer& peer,
                                        uint64_t wr_id) {
  const verbs::ScatterGather sge{
      reinterpret_cast<uint64_t>(memory_.base()) + ReceiveOffset(peer, wr_id & 0xffff),
      ledger::kReplyBytes, region_->lkey()};
  const verbs::ReceiveRequest request{wr_id, {&sge, 1}};
  size_t posted = 0;
  return queue_pair.PostReceive({&request, 1}, &posted);
}

absl::StatusOr<bool> LoadGenerator::Turn() {
  device_->Progress();
  BATON_RETURN_IF_ERROR(PollCompletions().status());
  BATON_RETURN_IF_ERROR(HandleEvents());
  const uint64_t now = MonotonicNanoseconds();
  BATON_RETURN_IF_ERROR(ConnectDue(now));
  BATON_RETURN_IF_ERROR(ConnectSpares(now));
  BATON_RETURN_IF_ERROR(AskIdle(now));
  if (now >= next_tick_) BATON_RETURN_IF_ERROR(OnTick(now));
  device_->Progress();  // sends what was posted
  BATON_RETURN_IF_ERROR(queue_->RequestNotification());
  BATON_ASSIGN_OR_RETURN(const bool found, PollCompletions());
  return !found;
}

absl::StatusOr<bool> LoadGenerator::PollCompletions() {
  std::array<verbs::Completion, kPollBatch> completions;
  for (bool found = false;;) {
    BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(completions)));
    if (count == 0) return found;
    found = true;
    for (int i = 0; i < count; ++i) BATON_RETURN_IF_ERROR(OnCompletion(completions[i]));
  }
}

absl::Status LoadGenerator::OnCompletion(const verbs::Completion& completion) {
  const uint32_t index = (completion.wr_id >> 16) & (kMaxConnections - 1);
  Peer& peer = *connections_.at(index);
  const uint32_t incarnation = (completion.wr_id >> 40) & kIncarnationMask;
  if (incarnation != (peer.incarnation & kIncarnationMask)) return absl::OkStatus();
  if (completion.status == verbs::CompletionStatus::kSuccess) {
    if ((completion.wr_id & kReceiveBit) == 0) return absl::OkStatus();
    return OnReply(peer, completion.wr_id & 0xffff, completion.byte_len);
  }
  // The disconnect follows by itself when the queue pair was only flushed.
  if (completion.status != verbs::CompletionStatus::kFlushError && peer.phase == Peer::Phase::kUp) {
    connection_error_ = absl::UnavailableError(absl::StrCat(
        "connection ", index,
        ": a work request failed: ", std::string(verbs::CompletionStatusName(completion.status))));
    if (sink_) sink_(std::string(connection_error_.message()));
    peer.id->Disconnect().IgnoreError();  // the connection has failed already
  }
  return absl::OkStatus();
}

absl::Status LoadGenerator::OnReply(Peer& peer, uint32_t slot, uint32_t length) {
  const uint64_t now = MonotonicNanoseconds();
  const ReplyChecker::Verdict verdict = peer.checker.OnReply(
      {memory_.base() + ReceiveOffset(peer, slot), std::min(length, ledger::kReplyBytes)}, now);
  if (!verdict.defect.empty() && sink_) {
    sink_(absl::StrCat("connection ", peer.index, ": ", verdict.defect));
  }
  BATON_RETURN_IF_ERROR(PostReceive(*peer.queue_pair, peer, peer.WorkRequestId(true, slot)));
  if (!verdict.answered) return absl::OkStatus();
  RecordReply(peer, verdict, now);
  if (verdict.moving && options_.standby) {
    home_ = 1 - peer.place;
    BATON_RETURN_IF_ERROR(SendUnsent(peer));
  }
  if (rate_ == 0 && sending_ && peer.active) return Request(peer, now);
  return absl::OkStatus();
}

void LoadGenerator::RecordReply(Peer& peer, const ReplyChecker::Verdict& verdict, uint64_t now) {
  const uint64_t silence = peer.silence.OnReply(now, peer.checker.open());
  peer.longest_silence = std::max(peer.longest_silence, silence);
  if (timeline_ != nullptr) timeline_->OnReply(silence);
  totals_.latency.Record(verdict.latency);
  if (peer.latency) peer.latency->Record(verdict.latency);
  ++peer.messages;
  ++window_.messages;
  if (std::exchange(peer.last_window, window_number_) != window_number_) {
    ++window_.connections_with_reply;
  }
  if (peer.last_version != 0) --last_versions_[peer.last_version];
  peer.last_version = std::min<uint16_t>(verdict.version, kVersions - 1);
  if (peer.last_version != 0) ++last_versions_[peer.last_version];
  ++totals_.versions[peer.last_version];
  if (peer.settle_from != 0 && verdict.sequence >= peer.settle_from) {
    peer.settle_from = 0;
    --unsettled_;
  }
}

absl::Status LoadGenerator::HandleEvents() {
  verbs::CmEvent event;
  while (device_->NextEvent(&event)) {
    if (event.id == nullptr) continue;  // a connection request: there is no listener
    Peer& peer = *static_cast<Peer*>(event.id->context);
    const bool established = event.type == verbs::CmEventType::kEstablished;
    if (event.id == peer.spare.id.get()) {
      OnSpareEvent(peer, established);
      continue;
    }
    if (established) {
      BATON_RETURN_IF_ERROR(OnEstablished(peer));
      continue;
    }
    // Replies that came before the end count.
    BATON_RETURN_IF_ERROR(PollCompletions().status());
    if (event.id != peer.id.get()) continue;  // it has moved with the last of them
    const bool ended = event.type == verbs::CmEventType::kDisconnected;
    BATON_RETURN_IF_ERROR(OnConnectionLost(
        peer, ended ? absl::UnavailableError("the service disconnected") : event.status));
  }
  return absl::OkStatus();
}

absl::Status LoadGenerator::OnEstablished(Peer& peer) {
  peer.phase = Peer::Phase::kUp;
  --connecting_;
  if (peer.was_up) ++totals_.reconnects;
  if (!peer.was_up) ++established_;
  if (!peer.was_up && options_.standby) without_spare_.push_back(&peer);
  peer.was_up = true;
  BATON_RETURN_IF_ERROR(SendUnsent(peer));
  return rate_ == 0 && peer.active ? Request(peer, MonotonicNanoseconds()) : absl::OkStatus();
}

void LoadGenerator::WaitToConnect(Peer& peer, uint64_t until) {
  if (peer.phase != Peer::Phase::kDown) DownLike(peer).push_back(&peer);
  peer.phase = Peer::Phase::kDown;
  peer.retry_at = until;
}

absl::Status LoadGenerator::OnConnectionLost(Peer& peer, const absl::Status& why) {
  const uint64_t now = MonotonicNanoseconds();
  const bool was_up = peer.phase == Peer::Phase::kUp;
  if (peer.phase == Peer::Phase::kConnecting) --connecting_;
  if (was_up) {
    ++totals_.disconnects;
    ++window_.disconnects;
  } else {
    ++totals_.connect_failures;
  }
  const std::string text = absl::StrCat(
      "connection ", peer.index, was_up ? ": " : " was not made: ", std::string(why.message()));
  if (!was_up && absl::IsUnavailable(why) && now < patient_until_) {
    if (sink_ && !std::exchange(has_waited_, true)) {
      sink_(absl::StrCat(text, "; nobody may listen yet, so it is tried again"));
    }
    WaitToConnect(peer, now + kPatientIntervalNs);
    return absl::OkStatus();
  }
  connection_error_ = absl::Status(why.code(), text);
  if (was_up && peer.spare.up) return FollowLoss(peer);
  if (options_.reconnect) {
    if (was_up) peer.checker.Rewind();
    WaitToConnect(peer, was_up ? now : now + uint64_t{options_.reconnect_interval_us} * 1000);
    return absl::OkStatus();
  }
  if (sink_) sink_(std::string(connection_error_.message()));
  peer.phase = Peer::Phase::kEnded;
  peer.checker.GiveUp();
  peer.silence.OnEnd(now);
  peer.longest_silence = std::max(peer.longest_silence, peer.silence.Longest(now));
  if (peer.settle_from != 0) {
    peer.settle_from = 0;
    --unsettled_;
  }
  return absl::OkStatus();
}

uint64_t LoadGenerator::tick_nanoseconds() const {
  if (rate_ == 0 || timeline_ != nullptr) return kShortestTickNanoseconds;
  return std::clamp(500'000'000 / rate_, kShortestTickNanoseconds, kLongestTickNanoseconds);
}

absl::Status LoadGenerator::OnTick(uint64_t now) {
  next_tick_ = now + tick_nanoseconds() / 2;
  BATON_RETURN_IF_ERROR(Pace(now));
  ExpireSome(now);
  AdvanceTimeline(now);
  return absl::OkStatus();
}

// Looks at a few connections each time: looking at all of ten thousand would itself cause a
// silence.
void LoadGenerator::ExpireSome(uint64_t now) {
  const size_t count = connections_.size() / kTicksPerExpiry + 1;
  for (size_t i = 0; i < count; ++i) {
    Peer& peer = *connections_[next_expiry_];
    next_expiry_ = (next_expiry_ + 1) % connections_.size();
    const uint32_t lost = peer.checker.Expire(now, uint64_t{options_.reply_timeout_ms} * 1'000'000);
    if (lost > 0 && sink_) {
      sink_(absl::StrCat("connection ", peer.index, ": ", lost, " requests were not answered in ",
                         options_.reply_timeout_ms, " ms: lost"));
    }
  }
}

// Connects in the order in which connections were lost or failed. A connection that has to wait
// delays the next, by the interval at most.
absl::Status LoadGenerator::ConnectDue(uint64_t now) {
  BATON_RETURN_IF_ERROR(ConnectDue(down_active_, now));
  return ConnectDue(down_idle_, now);
}

std::deque<LoadGenerator::Peer*>& LoadGenerator::DownLike(const Peer& peer) {
  return peer.active ? down_active_ : down_idle_;
}

absl::Status LoadGenerator::ConnectDue(std::deque<Peer*>& down, uint64_t now) {
  while (!down.empty() && now >= down.front()->retry_at && connecting_ < kMaxAtOnce) {
    Peer& peer = *down.front();
    down.pop_front();
    BATON_RETURN_IF_ERROR(Connect(peer));
  }
  return absl::OkStatus();
}

void LoadGenerator::SetRate(uint64_t rate) {
  rate_ = rate;
  pace_start_ = MonotonicNanoseconds();
  pace_issued_ = 0;
}

absl::Status LoadGenerator::Pace(uint64_t now) {
  if (!sending_) return absl::OkStatus();
  if (rate_ == 0) {
    // Replies keep the windows full; this starts them, and goes on where the queue had no room.
    for (Peer* peer : active_) {
      if (peer->phase == Peer::Phase::kUp) BATON_RETURN_IF_ERROR(Request(*peer, now));
    }
    return absl::OkStatus();
  }
  const auto due = static_cast<uint64_t>(static_cast<double>(now - pace_start_) * 1e-9 *
                                         static_cast<double>(rate_));
  uint32_t refused_in_a_row = 0;
  while (pace_issued_ < due) {
    if (refused_in_a_row == active_.size()) {
      totals_.throttled += due - pace_issued_;
      pace_issued_ = due;
      break;
    }
    Peer& peer = *active_[next_active_];
    next_active_ = (next_active_ + 1) % active_.size();
    const bool waits_to_reconnect = options_.reconnect && peer.was_up;
    if (!peer.checker.HasRoom() || (peer.phase != Peer::Phase::kUp && !waits_to_reconnect)) {
      ++refused_in_a_row;
      continue;
    }
    refused_in_a_row = 0;
    ++pace_issued_;
    BATON_RETURN_IF_ERROR(Request(peer, now));
  }
  return absl::OkStatus();
}

// Sends one request on each idle connection that a settle waits for. A connection without room
// still has the request of the settle before open, and sends later.
absl::Status LoadGenerator::AskIdle(uint64_t now) {
  while (sending_ && !to_ask_.empty() && unsettled_ < to_ask_.size() + kMaxAtOnce) {
    Peer& peer = *to_ask_.front();
    to_ask_.pop_front();
    if (peer.settle_from == 0) continue;  // it has ended
    if (!peer.checker.HasRoom()) {
      to_ask_.push_back(&peer);
      break;
    }
    peer.checker.Intend(now);
    peer.silence.OnRequest(now);
    BATON_RETURN_IF_ERROR(SendUnsent(peer));
  }
  return absl::OkStatus();
}

// Makes one request, or without a rate as many as the window allows.
absl::Status LoadGenerator::Request(Peer& peer, uint64_t now) {
  while (peer.checker.HasRoom()) {
    peer.checker.Intend(now);
    peer.silence.OnRequest(now);
    if (rate_ != 0) break;
  }
  return SendUnsent(peer);
}

absl::Status LoadGenerator::SendUnsent(Peer& peer) {
  if (MayMove(peer)) MoveToSpare(peer);
  // The connection moves when no request is under way.
  if (peer.place != home_ && peer.spare.up) return absl::OkStatus();
  while (peer.phase == Peer::Phase::kUp && peer.checker.HasUnsent()) {
    const uint64_t sequence = peer.checker.unsent_sequence();
    uint8_t* message = memory_.base() + SendOffset(peer, sequence);
    peer.checker.WriteUnsent({message, options_.message_bytes});
    const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(message), options_.message_bytes,
                                   region_->lkey()};
    verbs::SendRequest request;
    request.wr_id = peer.WorkRequestId(false, sequence % send_slots_);
    request.sges = {&sge, 1};
    size_t posted = 0;
    const absl::Status status = peer.queue_pair->PostSend({&request, 1}, &posted);
    // The queue is full, or the connection is ending and its event follows. The request is sent
    // later.
    if (absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status)) break;
    BATON_RETURN_IF_ERROR(status);
    peer.checker.MarkSent();
    ++totals_.sent;
    if (sequence <= peer.sent_highest) ++totals_.retried;
    peer.sent_highest = std::max(peer.sent_highest, sequence);
  }
  return absl::OkStatus();
}

bool LoadGenerator::IsDrained() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& peer) { return peer->checker.open() == 0; });
}

void LoadGenerator::GiveUp() {
  for (auto& peer : connections_) peer->checker.GiveUp();
}

void LoadGenerator::AdvanceTimeline(uint64_t now) {
  if (timeline_ == nullptr || !timeline_->IsDue(now)) return;
  uint64_t ongoing = 0;
  Timeline::Counters counters = {.defects = {}, .disconnects = totals_.disconnects};
  for (const auto& peer : connections_) {
    ongoing = std::max(ongoing, peer->silence.Ongoing(now));
    counters.defects.Add(peer->checker.defects());
  }
  timeline_->Advance(now, ongoing, counters);
}

// Looks at the active connections alone: looking at all of ten thousand would itself cause a
// silence.
WindowSummary LoadGenerator::EndWindow() {
  const uint64_t now = MonotonicNanoseconds();
  WindowSummary window = std::exchange(window_, {});
  for (Peer* peer : active_) {
    const uint64_t silence = peer->silence.Longest(now);
    if (silence > window.max_silence) {
      window.max_silence = silence;
      window.worst_connection = peer->index;
    }
    peer->silence.BeginWindow();
  }
  window.last_versions = last_versions_;
  window.spares = spares_;
  window.nanoseconds = now - window_start_;
  window_start_ = now;
  ++window_number_;
  return window;
}

void LoadGenerator::BeginSettle(Settling which) {
  if (unsettled_ != 0) {
    for (auto& peer : connections_) peer->settle_from = 0;
  }
  unsettled_ = 0;
  to_ask_.clear();
  const auto await = [this](Peer& peer) {
    if (peer.phase == Peer::Phase::kEnded) return;
    peer.settle_from = peer.checker.next_sequence();
    ++unsettled_;
    if (!peer.active) to_ask_.push_back(&peer);
  };
  if (which == Settling::kActive) {
    for (Peer* peer : active_) await(*peer);
  } else {
    for (auto& peer : connections_) await(*peer);
  }
}

Summary LoadGenerator::Summarize() const {
  const uint64_t now = MonotonicNanoseconds();
  Summary summary = totals_;
  summary.connections = static_cast<uint32_t>(connections_.size());
  summary.established = established_;
  for (const auto& peer : connections_) {
    const uint64_t silence = std::max(peer->longest_silence, peer->silence.Longest(now));
    const Defects& defects = peer->checker.defects();
    summary.messages += peer->messages;
    summary.defects.Add(defects);
    summary.max_silence = std::max(summary.max_silence, silence);
    if (peer->latency) {
      summary.per_connection.push_back({*peer->latency, peer->messages, silence, defects});
    }
  }
  return summary;
}

}  // namespace baton::peer
