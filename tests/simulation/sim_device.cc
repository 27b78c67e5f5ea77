#include "tests/simulation/sim_device.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/layout.h"

namespace baton::simulation {

using verbs::CmEventType;
using verbs::Completion;
using verbs::CompletionOpcode;
using verbs::CompletionStatus;
using verbs::QueuePairState;

namespace {

// A NIC refuses it, too: a driver that does not count what it posts would go on for ever.
absl::Status Overrun(Context* context, std::string_view queue) {
  context->Break(absl::StrCat(std::string(queue), " was overrun"));
  return absl::ResourceExhaustedError("the queue is full");
}

// Returns the number by which the observer is told of a shared receive. It names the queue, too.
uint64_t WithQueue(uint64_t wr_id, const SimSharedQueue& queue) {
  return wr_id | uint64_t{queue.index()} << 48;
}

bool HasImmediate(verbs::Opcode opcode) {
  return opcode == verbs::Opcode::kSendWithImmediate ||
         opcode == verbs::Opcode::kWriteWithImmediate;
}

}  // namespace

// ---------------------------------------------------------------- completion queue

absl::StatusOr<int> SimCompletionQueue::Poll(absl::Span<Completion> completions) {
  device_->context_->interleave();
  if (ready_.empty()) return 0;
  if (device_->context_->driver_dies("device: poll")) PollAndDie(completions);
  const size_t count = ready_.Copy(completions);
  Drop(count);
  device_->context_->DriverPoint("device: polled");
  return static_cast<int>(count);
}

void SimCompletionQueue::Drop(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Completion& completion = ready_[i];
    const bool send = arena::WrIdDirection(completion.wr_id) == arena::Direction::kSend;
    for (SimQueuePair* one : device_->queue_pairs_) {
      if (one->number() == completion.qp_number) one->Polled(send);
    }
  }
  ready_.Drop(count);
}

// Some are copied, and as many of them are taken from the queue, or one less, or none: a provider
// may take each by itself or all at its end. What was copied last and not taken may be torn.
void SimCompletionQueue::PollAndDie(absl::Span<Completion> completions) {
  Dice& dice = device_->context_->dice;
  const size_t count = std::min(completions.size(), ready_.size());
  const size_t copied = dice.Below(static_cast<uint32_t>(count + 1));
  ready_.Copy(completions.first(copied));
  size_t taken = copied;
  if (dice.OneIn(4)) {
    taken = 0;
  } else if (copied != 0 && dice.OneIn(2)) {
    taken = copied - 1;
  }
  if (taken < copied) {
    Completion& torn = completions[copied - 1];
    const uint64_t wr_id = torn.wr_id;
    switch (dice.Below(4)) {
      case 0:
        torn = Completion{};
        torn.wr_id = wr_id;
        break;
      case 1:
        torn.byte_len = dice.Below(100);
        torn.status = CompletionStatus::kGeneralError;
        torn.opcode = CompletionOpcode::kFetchAndAdd;
        break;
      case 2:
        torn.wr_id = arena::kInvalidWrId;
        break;
      default:
        break;
    }
  }
  if (taken != 0 && dice.OneIn(2)) {
    const Completion& last = ready_[taken - 1];
    const bool send = arena::WrIdDirection(last.wr_id) == arena::Direction::kSend;
    for (SimQueuePair* one : device_->queue_pairs_) {
      if (one->number() == last.qp_number) one->PolledUnseen(last.wr_id, send);
    }
  }
  Drop(taken);
  device_->context_->Note("device: died polling", copied, taken);
  throw DriverKilled();
}

void SimCompletionQueue::TakeOver() {
  for (SimQueuePair* one : device_->queue_pairs_) one->TakeOver(this);
}

absl::Status SimCompletionQueue::RequestNotification() {
  notify_ = true;
  return absl::OkStatus();
}

void SimCompletionQueue::Push(const Completion& completion) {
  ready_.Add(completion);
  if (ready_.size() > entries_) device_->context_->Break("a completion queue was overrun");
  if (std::exchange(notify_, false)) device_->notified_ = true;
}

// ---------------------------------------------------------------- shared receives

absl::Status SimSharedQueue::PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                                         size_t* posted) {
  device_->context_->interleave();
  *posted = 0;
  const bool dies = device_->context_->driver_dies("device: shared post");
  for (const verbs::ReceiveRequest& request : requests) {
    if (dies && device_->context_->dice.OneIn(2)) throw DriverKilled();
    if (receives_.size() == entries_) return Overrun(device_->context_, "a shared queue");
    verbs::ReceiveRequest told = request;
    told.wr_id = WithQueue(request.wr_id, *this);
    device_->observer_->OnReceivePosted(told);
    receives_.emplace_back(request);
    ++device_->posts_;
    ++*posted;
  }
  if (dies) throw DriverKilled();
  return absl::OkStatus();
}

// Queue pairs of a shard complete in the queue of this index.
absl::StatusOr<bool> SimSharedQueue::IsQueued(uint64_t wr_id) const {
  if (!device_->answers_) return absl::UnimplementedError("it does not say");
  const auto is_it = [wr_id](const auto& posted) { return posted.wr_id == wr_id; };
  return std::any_of(receives_.begin(), receives_.end(), is_it) ||
         device_->queues_[index_]->ready().Has(wr_id) ||
         std::any_of(
             device_->queue_pairs_.begin(), device_->queue_pairs_.end(),
             [&](const SimQueuePair* one) { return one->shared() == this && one->Holds(wr_id); });
}

PostedRequest SimSharedQueue::Take() {
  const auto place =
      receives_.begin() + device_->context_->dice.Below(static_cast<uint32_t>(receives_.size()));
  const PostedRequest taken = *place;
  receives_.erase(place);
  return taken;
}

// ---------------------------------------------------------------- queue pair

SimQueuePair::~SimQueuePair() {
  if (wire_) wire_->queue_pair = nullptr;
  std::erase(device_->queue_pairs_, this);
  if (!idle()) device_->context_->Break("P4: a queue pair was destroyed with work outstanding");
}

// The connection is then Baton's to fail.
bool SimQueuePair::Refuse() {
  if (!device_->refuse_posts_ || !device_->context_->dice.OneIn(100)) return false;
  if (state_ == QueuePairState::kError) return false;
  device_->context_->Note("device: post refused");
  if (wire_) wire_->broken = true;
  return wire_ != nullptr;
}

// How many of them are posted before the driver dies; all and more: it lives.
size_t SimQueuePair::Lifetime(size_t requests) {
  if (!device_->context_->driver_dies("device: post")) return requests + 1;
  return device_->context_->dice.Below(static_cast<uint32_t>(requests + 1));
}

// After the requests were queued, and before the ring, as mlx5's driver may.
void SimQueuePair::DieUnrung(size_t posted) {
  const bool unrung = device_->answers_ && device_->context_->dice.OneIn(2);
  unrung_ = unrung ? unrung_ + posted : 0;
  throw DriverKilled();
}

void SimQueuePair::TakeOver(const SimCompletionQueue* queue) {
  if (options_.send_queue == queue) {
    unrung_ = 0;
    unseen_[0].reset();
  }
  if (options_.receive_queue == queue) unseen_[1].reset();
}

absl::StatusOr<std::optional<uint64_t>> SimQueuePair::LastQueued(bool receive) const {
  if (!device_->answers_) return absl::UnimplementedError("it does not say");
  if (receive && shared_) return std::nullopt;
  if (receive && !receives_.empty()) return receives_.back().wr_id;
  if (!receive && !sends_.empty()) return sends_.back().wr_id;
  const verbs::CompletionQueue* queue = receive ? options_.receive_queue : options_.send_queue;
  const auto last = static_cast<const SimCompletionQueue*>(queue)->ready().Last(number(), receive);
  return last.has_value() ? last : unseen_[receive ? 1 : 0];
}

bool SimQueuePair::Holds(uint64_t wr_id) const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [wr_id](const auto& posted) { return posted.wr_id == wr_id; });
}

absl::Status SimQueuePair::PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) {
  device_->context_->interleave();
  *posted = 0;
  if (state_ != QueuePairState::kReadyToSend && state_ != QueuePairState::kError) {
    return absl::FailedPreconditionError("send before the queue pair is connected");
  }
  const size_t lifetime = Lifetime(requests.size());
  for (const verbs::SendRequest& request : requests) {
    if (*posted == lifetime) DieUnrung(*posted);
    if (unpolled_sends_ == options_.max_send_requests) {
      return Overrun(device_->context_, "a send queue");
    }
    const bool refused = Refuse();
    // What was refused may have been queued all the same.
    if (!refused || device_->context_->dice.OneIn(2)) {
      device_->observer_->OnSendPosted(request);
      sends_.emplace_back(request);
      ++unpolled_sends_;
      ++device_->posts_;
    }
    if (refused) {
      unrung_ = 0;
      return absl::InternalError("the provider's own reasons");
    }
    ++*posted;
  }
  if (*posted == lifetime) DieUnrung(*posted);
  unrung_ = 0;
  return absl::OkStatus();
}

absl::Status SimQueuePair::PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                                       size_t* posted) {
  device_->context_->interleave();
  *posted = 0;
  const size_t lifetime = Lifetime(requests.size());
  for (const verbs::ReceiveRequest& request : requests) {
    if (*posted == lifetime) throw DriverKilled();
    if (unpolled_receives_ == options_.max_receive_requests) {
      return Overrun(device_->context_, "a receive queue");
    }
    const bool refused = Refuse();
    if (!refused || device_->context_->dice.OneIn(2)) {
      device_->observer_->OnReceivePosted(request);
      receives_.emplace_back(request);
      ++unpolled_receives_;
      ++device_->posts_;
    }
    if (refused) return absl::InternalError("the provider's own reasons");
    ++*posted;
  }
  if (*posted == lifetime) throw DriverKilled();
  return absl::OkStatus();
}

absl::Status SimQueuePair::SetError() {
  device_->context_->DriverPoint("device: set error");
  Fail();
  device_->context_->DriverPoint("device: in error");
  return absl::OkStatus();
}

absl::Status SimQueuePair::SetReset() {
  if (!idle()) device_->context_->Break("P4: a queue pair was reset with work outstanding");
  if (wire_) wire_->queue_pair = nullptr;
  wire_ = nullptr;
  executed_ = arrived_ = unrung_ = 0;
  unpolled_sends_ = unpolled_receives_ = 0;
  unseen_[0].reset();
  unseen_[1].reset();
  holds_no_receive_ = false;
  state_ = QueuePairState::kReset;
  return absl::OkStatus();
}

void SimQueuePair::Connect(Wire* wire) {
  wire_ = wire;
  wire->queue_pair = this;
  // In the error state it stays when its user has put it there meanwhile.
  if (state_ == QueuePairState::kInit) state_ = QueuePairState::kReadyToSend;
}

// A device looks at the lists when it executes.
bool SimQueuePair::CheckBuffers(const PostedRequest& posted, const char* otherwise) {
  const auto is_right = [this](const auto& sge) { return device_->IsRegistered(sge); };
  if (std::all_of(posted.sges.begin(), posted.sges.end(), is_right)) return true;
  device_->context_->Break(otherwise);
  return false;
}

void SimQueuePair::Complete(bool send, const Completion& completion) {
  device_->context_->Note(send ? "device: send completed" : "device: receive completed",
                          completion.wr_id, static_cast<uint64_t>(completion.status));
  Completion told = completion;
  if (!send && shared_) told.wr_id = WithQueue(completion.wr_id, *shared_);
  device_->observer_->OnCompleted(told);
  verbs::CompletionQueue* queue = send ? options_.send_queue : options_.receive_queue;
  static_cast<SimCompletionQueue*>(queue)->Push(completion);
}

bool SimQueuePair::Transmit() {
  if (state_ != QueuePairState::kReadyToSend || executed_ + unrung_ >= sends_.size()) return false;
  if (!wire_->peer_ready) return false;
  const auto& posted = sends_[executed_];
  if (!CheckBuffers(posted, "a send reads outside of the buffers")) return true;
  wire_->to_peer.push_back({posted.opcode, posted.immediate, posted.Gather()});
  ++executed_;
  device_->context_->Note("device: send executed", posted.wr_id);
  return true;
}

bool SimQueuePair::Acknowledge() {
  if (state_ != QueuePairState::kReadyToSend || arrived_ == 0) return false;
  const Completion completion = sends_.front().Complete(number());
  sends_.pop_front();
  --executed_;
  --arrived_;
  Complete(true, completion);
  return true;
}

bool SimQueuePair::TakeMessage() {
  if (state_ != QueuePairState::kReadyToSend || wire_->to_us.empty()) return false;
  if (receives_.empty()) {
    if (!shared_ || shared_->empty()) return false;
    receives_.push_back(shared_->Take());
    ++unpolled_receives_;
    if (device_->context_->dice.OneIn(2)) return true;  // the rest of the message comes later
  }
  const PostedRequest posted = receives_.front();
  const Message message = std::move(wire_->to_us.front());
  wire_->to_us.pop_front();
  receives_.pop_front();
  Completion completion = posted.Complete(number());
  completion.byte_len = static_cast<uint32_t>(message.bytes.size());
  completion.has_immediate = HasImmediate(message.opcode);
  completion.immediate = message.immediate;
  if (!CheckBuffers(posted, "a receive writes outside of the buffers")) return true;
  if (posted.Scatter(message.bytes) != 0) {
    completion.status = CompletionStatus::kLocalLengthError;
    state_ = QueuePairState::kError;
    device_->Break(*wire_);
  }
  Complete(false, completion);
  return true;
}

bool SimQueuePair::Flush(bool send) {
  if (state_ != QueuePairState::kError) return false;
  if (!send && receives_.empty() && may_hold_receive()) {
    holds_no_receive_ = true;
    verbs::DeviceEvent event;
    event.type = verbs::DeviceEventType::kLastWorkRequestReached;
    event.qp_number = number();
    device_->FakeDevice::Report(event);
    device_->has_events_ = true;
    return true;
  }
  if (send ? sends_.size() <= unrung_ : receives_.empty()) return false;
  const Completion completion =
      (send ? sends_ : receives_).front().Complete(number(), CompletionStatus::kFlushError);
  if (send) {
    sends_.pop_front();
    executed_ -= std::min<size_t>(executed_, 1);
    arrived_ -= std::min<size_t>(arrived_, 1);
  } else {
    receives_.pop_front();
  }
  Complete(send, completion);
  return true;
}

bool SimQueuePair::FailSend() {
  if (state_ != QueuePairState::kReadyToSend || executed_ == 0) return false;
  const Completion completion = sends_.front().Complete(number(), CompletionStatus::kRetryExceeded);
  sends_.pop_front();
  --executed_;
  arrived_ -= std::min<size_t>(arrived_, 1);
  state_ = QueuePairState::kError;
  Complete(true, completion);
  return true;
}

// ---------------------------------------------------------------- connection manager

SimId::~SimId() {
  // This is what rdma_destroy_id does: the peer sees a disconnect, and this id has no more events.
  wire_->we_closed = true;
  wire_->id = nullptr;
  std::erase_if(device_->events_, [this](const verbs::CmEvent& event) { return event.id == this; });
  if (wire_->queue_pair) wire_->queue_pair->Fail();
}

absl::Status SimId::Accept(verbs::QueuePair* queue_pair,
                           const verbs::ConnectionParameters& parameters) {
  device_->context_->interleave();
  device_->context_->DriverPoint("device: before accept");
  if (wire_->we_told) return absl::UnavailableError("the peer has given up its request");
  if (wire_->answered) return absl::FailedPreconditionError("accept: answered already");
  wire_->answered = wire_->accepted = true;
  wire_->answer_data = parameters.private_data;
  static_cast<SimQueuePair*>(queue_pair)->Connect(wire_);
  device_->context_->Note("device: accept");
  device_->context_->DriverPoint("device: after accept");
  return absl::OkStatus();
}

absl::Status SimId::Reject(std::string_view private_data) {
  device_->context_->interleave();
  if (wire_->we_told) return absl::UnavailableError("the peer has given up its request");
  if (wire_->answered) return absl::FailedPreconditionError("reject: answered already");
  wire_->answered = true;
  wire_->answer_data = std::string(private_data);
  device_->context_->Note("device: reject");
  device_->context_->DriverPoint("device: after reject");
  return absl::OkStatus();
}

absl::Status SimId::Disconnect() {
  device_->context_->interleave();
  if (!wire_->accepted || wire_->we_closed || wire_->we_told) {
    return absl::FailedPreconditionError("disconnect: there is no connection");
  }
  wire_->we_closed = true;
  if (wire_->queue_pair) wire_->queue_pair->Fail();
  device_->context_->Note("device: disconnect");
  device_->context_->DriverPoint("device: after disconnect");
  return absl::OkStatus();
}

// ---------------------------------------------------------------- device

SimDevice::~SimDevice() { events_.clear(); }

verbs::DeviceLimits SimDevice::limits() const {
  verbs::DeviceLimits limits = FakeDevice::limits();
  limits.max_shared_receive_queues = limits.max_shared_receive_requests = 1 << 16;
  limits.max_shared_receive_scatter_gather = arena::kMaxSges;
  return limits;
}

absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> SimDevice::CreateCompletionQueue(
    uint32_t entries) {
  auto queue = std::make_unique<SimCompletionQueue>(this, entries);
  queues_.push_back(queue.get());
  return queue;
}

absl::StatusOr<std::unique_ptr<verbs::QueuePair>> SimDevice::CreateQueuePair(
    const verbs::QueuePairOptions& options) {
  auto queue_pair = std::make_unique<SimQueuePair>(this, ++last_queue_pair_, options);
  queue_pairs_.push_back(queue_pair.get());
  return queue_pair;
}

absl::StatusOr<std::unique_ptr<verbs::SharedReceiveQueue>> SimDevice::CreateSharedReceiveQueue(
    uint32_t entries, uint32_t) {
  auto queue =
      std::make_unique<SimSharedQueue>(this, entries, static_cast<uint32_t>(shared_queues_.size()));
  shared_queues_.push_back(queue.get());
  return queue;
}

absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> SimDevice::Connect(
    const verbs::Address&, verbs::QueuePair* queue_pair,
    const verbs::ConnectionParameters& parameters) {
  Wire* const wire = Request(nullptr, parameters.private_data);
  wire->connecting = static_cast<SimQueuePair*>(queue_pair);
  return std::make_unique<SimId>(this, wire);
}

// The other side of Connect, at the peer's.
void SimDevice::AnswerRequest(Wire& wire) {
  wire.requested = wire.answered = true;
  RemoteEnd* const peer =
      wire.we_closed || !remote_listener_ ? nullptr : remote_listener_->OnRequest(&wire);
  if (!peer) {
    wire.peer_told = wire.we_told = true;
    if (wire.id) {
      Report(wire, context_->dice.OneIn(2) ? CmEventType::kRejected : CmEventType::kUnreachable);
    }
    return;
  }
  wire.peer = peer;
  wire.accepted = wire.peer_ready = wire.established = true;
  wire.connecting->Connect(&wire);
  Report(wire, CmEventType::kEstablished);
}

Wire* SimDevice::Request(RemoteEnd* peer, std::string private_data) {
  wires_.push_back(std::make_unique<Wire>());
  wires_.back()->peer = peer;
  wires_.back()->request_data = std::move(private_data);
  open_.push_back(wires_.back().get());
  return wires_.back().get();
}

bool SimDevice::NextEvent(verbs::CmEvent* event) {
  context_->interleave();
  if (events_.empty()) return false;
  context_->DriverPoint("device: before an event");
  return FakeDevice::NextEvent(event);
}

void SimDevice::Progress() {
  context_->interleave();
  has_events_ = false;
  if (!forked_) notified_ = false;
}

void SimDevice::ForgetNotification() {
  context_->interleave();
  notified_ = false;
}

void SimDevice::Report(Wire& wire, CmEventType type) {
  verbs::CmEvent event;
  event.type = type;
  event.id = wire.id;
  if (type == CmEventType::kConnectRequest) {
    event.new_id = std::make_unique<SimId>(this, &wire);
    event.id = nullptr;
    event.listener = listener_;
    event.private_data = wire.request_data;
  }
  if (type == CmEventType::kEstablished && wire.connecting) event.private_data = wire.answer_data;
  if (type == CmEventType::kRejected) event.status = absl::AbortedError("the peer does not want");
  if (type == CmEventType::kUnreachable) event.status = absl::UnavailableError("the peer is gone");
  context_->Note("device: event", static_cast<uint64_t>(type));
  events_.push_back(std::move(event));
  has_events_ = true;
}

bool SimDevice::Break(Wire& wire) {
  if (!wire.accepted || wire.we_closed || wire.peer_closed) return false;
  context_->Note("device: link breaks");
  wire.broken = true;
  if (wire.queue_pair && context_->dice.OneIn(2)) wire.queue_pair->FailSend();
  wire.peer_closed = wire.we_closed = true;
  return true;
}

// The next step of a handshake or of an end.
bool SimDevice::Manage(Wire& wire) {
  if (wire.peer_closed && !wire.we_told) {
    wire.we_told = true;
    if (wire.queue_pair) wire.queue_pair->Fail();
    if (wire.id && wire.accepted) {
      Report(wire, wire.established ? CmEventType::kDisconnected : CmEventType::kUnreachable);
    }
    return true;
  }
  if (!wire.requested && wire.connecting) {
    AnswerRequest(wire);
    return true;
  }
  if (!wire.requested) {
    wire.requested = true;
    if (!wire.peer_closed) Report(wire, CmEventType::kConnectRequest);
    return true;
  }
  if (wire.answered && !wire.accepted && !wire.peer_told) {
    wire.peer_told = true;
    if (!wire.peer_left) wire.peer->OnRejected(wire.answer_data);
    return true;
  }
  if (wire.we_closed && !wire.peer_told) {
    wire.peer_told = true;
    if (!wire.peer_left) wire.peer->OnDisconnected();
    if (!wire.we_told && wire.id && wire.accepted) {
      wire.we_told = true;
      Report(wire, CmEventType::kDisconnected);
    }
    return true;
  }
  if (wire.accepted && !wire.peer_ready && !wire.peer_closed && !wire.peer_told) {
    wire.peer_ready = true;
    wire.peer->OnAccepted(wire.answer_data);
    return true;
  }
  if (wire.peer_ready && !wire.established && !wire.we_told && wire.id) {
    wire.established = true;
    Report(wire, CmEventType::kEstablished);
    return true;
  }
  return false;
}

// Queue pairs are flushed whether they have a wire or not.
bool SimDevice::Step(bool faults) {
  if (queue_pairs_.empty() || context_->dice.Below(3) != 0) return StepWire(faults);
  // Most of those that are made in advance wait in a pool.
  std::vector<SimQueuePair*> connected;
  if (forked_) {
    std::copy_if(queue_pairs_.begin(), queue_pairs_.end(), std::back_inserter(connected),
                 [](const auto* one) { return one->state() != QueuePairState::kInit; });
    if (connected.empty()) return false;
  }
  const std::vector<SimQueuePair*>& all = forked_ ? connected : queue_pairs_;
  const auto index = context_->dice.Below(static_cast<uint32_t>(all.size()));
  return all[index]->Flush(context_->dice.OneIn(2));
}

bool SimDevice::StepWire(bool faults) {
  if (open_.empty()) return false;
  const uint32_t index = context_->dice.Below(static_cast<uint32_t>(open_.size()));
  Wire& wire = *open_[index];
  SimQueuePair* const queue_pair = wire.queue_pair;
  if (wire.requested && (wire.peer_told || wire.peer_left) && (wire.we_told || !wire.id) &&
      !queue_pair) {
    open_.erase(open_.begin() + index);
    return false;
  }
  if (faults && context_->dice.OneIn(100)) {
    return Break(wire);
  }
  if (!queue_pair || context_->dice.OneIn(6)) return Manage(wire);
  switch (context_->dice.Below(4)) {
    case 0:
      return queue_pair->Transmit();
    case 1:
      if (wire.to_peer.empty() || wire.peer_told) return false;
      queue_pair->Arrived();
      // A write tells the peer nothing.
      if (!wire.peer_left && wire.to_peer.front().opcode != verbs::Opcode::kWrite) {
        wire.peer->OnMessage(wire.to_peer.front());
      }
      wire.to_peer.pop_front();
      return true;
    case 2:
      return queue_pair->Acknowledge();
    default:
      return queue_pair->TakeMessage();
  }
}

bool SimDevice::Quiet() const {
  const auto has_work = [](const Wire* wire) {
    return !wire->to_us.empty() || !wire->to_peer.empty() || !wire->requested ||
           (wire->peer_closed && !wire->we_told) || (wire->we_closed && !wire->peer_told) ||
           (wire->answered && !wire->accepted && !wire->peer_told) ||
           (wire->accepted && !wire->established && !wire->we_told);
  };
  const auto may_hold_receive = [](const SimQueuePair* one) { return one->may_hold_receive(); };
  return events_.empty() && device_events_.empty() &&
         std::none_of(queue_pairs_.begin(), queue_pairs_.end(), may_hold_receive) &&
         std::none_of(open_.begin(), open_.end(), has_work) &&
         std::all_of(queues_.begin(), queues_.end(),
                     [](const auto* q) { return q->ready().empty(); });
}

}  // namespace baton::simulation
