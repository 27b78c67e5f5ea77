#include "tests/lib/driver/scripted_device.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "lib/arena/layout.h"

namespace baton::driver::testing {

using verbs::Completion;
using verbs::CompletionStatus;
using verbs::QueuePairState;

namespace {

class Region final : public verbs::MemoryRegion {
 public:
  uint32_t lkey() const override { return 1; }
  uint32_t rkey() const override { return 1; }
};

class Id final : public verbs::ConnectionId {
 public:
  verbs::Address local_address() const override { return {"10.0.0.1", 1}; }
  verbs::Address peer_address() const override { return {"10.0.0.2", 2}; }
  verbs::ReadDepths depths() const override { return {16, 16}; }
  absl::Status Accept(verbs::QueuePair*, const verbs::ConnectionParameters&) override {
    return absl::UnimplementedError("scripted");
  }
  absl::Status Reject(std::string_view) override { return absl::OkStatus(); }
  absl::Status Disconnect() override { return absl::OkStatus(); }
};

}  // namespace

class ScriptedQueue final : public verbs::CompletionQueue {
 public:
  explicit ScriptedQueue(ScriptedDevice* device) : device_(device) {}

  absl::StatusOr<int> Poll(absl::Span<Completion> completions) override {
    if (device_->when_polled) device_->when_polled();
    auto& ready = device_->completions_;
    const size_t count = std::min(completions.size(), ready.size());
    std::copy_n(ready.begin(), count, completions.begin());
    const auto death = count == 0
                           ? ScriptedDevice::PollDeath::kNone
                           : std::exchange(device_->die_polling, ScriptedDevice::PollDeath::kNone);
    if (death == ScriptedDevice::PollDeath::kHalfWritten) {
      completions[count - 1].status = CompletionStatus::kGeneralError;
      completions[count - 1].byte_len = 4711;
    }
    const bool taken = death == ScriptedDevice::PollDeath::kNone ||
                       death == ScriptedDevice::PollDeath::kAfterTaking;
    const auto gone = static_cast<ptrdiff_t>(taken ? count : count - 1);
    ready.erase(ready.begin(), ready.begin() + gone);
    if (death != ScriptedDevice::PollDeath::kNone) throw DriverDied();
    return static_cast<int>(count);
  }
  void TakeOver() override { device_->is_unrung = false; }
  absl::Status RequestNotification() override { return absl::OkStatus(); }

 private:
  ScriptedDevice* const device_;
};

class ScriptedQueuePair final : public verbs::QueuePair {
 public:
  ScriptedQueuePair(ScriptedDevice* device, uint32_t number, uint32_t max_inline_data)
      : device_(device), number_(number), max_inline_data_(max_inline_data) {}
  ~ScriptedQueuePair() override { state_of().destroyed = true; }
  uint32_t number() const override { return number_; }
  QueuePairState state() const override { return state_of().state; }
  uint32_t max_inline_data() const override { return max_inline_data_; }

  absl::Status PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) override {
    std::vector<PostedRequest> all;
    for (const auto& one : requests) {
      all.push_back(
          {one.wr_id, false, one.opcode, {one.sges.begin(), one.sges.end()}, one.inline_data});
    }
    return device_->Post(&state_of().sends, all, posted);
  }
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    std::vector<PostedRequest> all;
    for (const auto& one : requests) {
      all.push_back(
          {one.wr_id, true, verbs::Opcode::kSend, {one.sges.begin(), one.sges.end()}, false});
    }
    return device_->Post(&state_of().receives, all, posted);
  }
  absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const override {
    if (absl::Status asked = device_->CheckAsked(); !asked.ok()) return asked;
    return device_->LastOf(receive ? state_of().receives : state_of().sends, number_, receive);
  }
  absl::Status SetError() override {
    state_of().state = QueuePairState::kError;
    ++state_of().flushes;
    return absl::OkStatus();
  }
  bool holds_no_receive() const override {
    return device_->holds_no_receive && state() == QueuePairState::kError;
  }

 private:
  ScriptedDevice::State& state_of() const { return device_->queue_pairs_[number_ - 1]; }

  ScriptedDevice* const device_;
  const uint32_t number_;
  const uint32_t max_inline_data_;
};

class ScriptedSharedQueue final : public verbs::SharedReceiveQueue {
 public:
  explicit ScriptedSharedQueue(ScriptedDevice* device) : device_(device) {}

  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    std::vector<PostedRequest> all;
    for (const auto& one : requests) {
      all.push_back(
          {one.wr_id, true, verbs::Opcode::kSend, {one.sges.begin(), one.sges.end()}, false});
    }
    return device_->Post(&device_->shared_, all, posted);
  }
  absl::Status ArmLimit(uint32_t limit) override {
    device_->limit = limit;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> IsQueued(uint64_t wr_id) const override {
    if (absl::Status asked = device_->CheckAsked(); !asked.ok()) return asked;
    const auto is_it = [wr_id](const auto& one) { return one.wr_id == wr_id; };
    return std::any_of(device_->shared_.begin(), device_->shared_.end(), is_it) ||
           std::any_of(device_->completions_.begin(), device_->completions_.end(), is_it);
  }

 private:
  ScriptedDevice* const device_;
};

absl::Status ScriptedDevice::CheckAsked() {
  if (!answers) return absl::UnimplementedError("scripted");
  if (is_unrung) ++asked_unrung;
  return is_confused ? absl::DataLossError("scripted nonsense") : absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> ScriptedDevice::LastOf(
    const std::deque<PostedRequest>& queue, uint32_t queue_pair, bool receive) const {
  if (lie.has_value()) return lie;
  if (!queue.empty()) return queue.back().wr_id;
  for (auto one = completions_.rbegin(); one != completions_.rend(); ++one) {
    const bool of_receive = arena::WrIdDirection(one->wr_id) == arena::Direction::kReceive;
    if (one->qp_number == queue_pair && of_receive == receive) return one->wr_id;
  }
  return std::nullopt;
}

absl::Status ScriptedDevice::Post(std::deque<PostedRequest>* queue,
                                  const std::vector<PostedRequest>& requests, size_t* posted) {
  const int die = std::exchange(die_after_posting, -1);
  is_unrung = die >= 0;
  const bool refused = refuse > 0;
  if (refused) --refuse;
  *posted = 0;
  for (size_t i = 0; i < requests.size() && (!refused || queue_refused); ++i) {
    if (die == static_cast<int>(i)) throw DriverDied();
    queue->push_back(requests[i]);
    history_.push_back(requests[i]);
    if (!refused) ++*posted;
  }
  if (die >= 0) throw DriverDied();
  return refused ? absl::InternalError("the provider's own reasons") : absl::OkStatus();
}

std::vector<PostedRequest> ScriptedDevice::outstanding(uint32_t queue_pair, bool receive) const {
  const State& state = queue_pairs_[queue_pair - 1];
  const auto& queue = receive ? state.receives : state.sends;
  return {queue.begin(), queue.end()};
}

void ScriptedDevice::Complete(uint32_t queue_pair, bool receive, std::string_view bytes,
                              CompletionStatus status) {
  State& state = queue_pairs_[queue_pair - 1];
  auto& queue = receive ? state.receives : state.sends;
  const PostedRequest request = queue.front();
  queue.pop_front();
  Fill(request, queue_pair, bytes, status);
}

void ScriptedDevice::CompleteShared(uint32_t queue_pair, size_t place, std::string_view bytes,
                                    CompletionStatus status) {
  const PostedRequest request = shared_[place];
  shared_.erase(shared_.begin() + static_cast<ptrdiff_t>(place));
  Fill(request, queue_pair, bytes, status);
}

void ScriptedDevice::Fill(const PostedRequest& request, uint32_t queue_pair, std::string_view bytes,
                          CompletionStatus status) {
  const bool receive = request.receive;
  Completion completion;
  completion.wr_id = request.wr_id;
  completion.status = status;
  completion.qp_number = queue_pair;
  completion.opcode = receive ? verbs::CompletionOpcode::kReceive : verbs::CompletionOpcode::kSend;
  completion.byte_len = static_cast<uint32_t>(bytes.size());
  for (const verbs::ScatterGather& sge : request.sges) {
    const size_t length = std::min<size_t>(sge.length, bytes.size());
    if (receive) bytes.copy(reinterpret_cast<char*>(sge.address), length);
    bytes.remove_prefix(length);
  }
  completions_.push_back(completion);
}

void ScriptedDevice::Flush(uint32_t queue_pair) {
  for (const bool receive : {true, false}) {
    while (!outstanding(queue_pair, receive).empty()) {
      Complete(queue_pair, receive, {}, CompletionStatus::kFlushError);
    }
  }
}

void ScriptedDevice::Lose(uint32_t queue_pair, bool receive) {
  State& state = queue_pairs_[queue_pair - 1];
  (receive ? state.receives : state.sends).clear();
}

void ScriptedDevice::Tell(verbs::CmEventType type, verbs::ConnectionId* id) {
  verbs::CmEvent event;
  event.type = type;
  event.id = id;
  events_.push_back(std::move(event));
}

bool ScriptedDevice::destroyed(uint32_t queue_pair) const {
  return queue_pairs_[queue_pair - 1].destroyed;
}

verbs::DeviceLimits ScriptedDevice::limits() const {
  verbs::DeviceLimits limits;
  limits.max_queue_pairs = limits.max_completion_queues = limits.max_memory_regions = 1 << 20;
  limits.max_send_requests = limits.max_receive_requests = 1 << 16;
  limits.max_completion_queue_entries = 1 << 20;
  limits.max_scatter_gather = limits.max_shared_receive_scatter_gather = arena::kMaxSges;
  limits.max_shared_receive_queues = limits.max_shared_receive_requests = 1 << 16;
  limits.atomics = limits.send_with_invalidate = true;
  return limits;
}

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> ScriptedDevice::RegisterMemory(void*, size_t,
                                                                                    uint32_t) {
  return std::make_unique<Region>();
}

absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> ScriptedDevice::CreateCompletionQueue(
    uint32_t) {
  return std::make_unique<ScriptedQueue>(this);
}

absl::StatusOr<std::unique_ptr<verbs::QueuePair>> ScriptedDevice::CreateQueuePair(
    const verbs::QueuePairOptions& options) {
  queue_pairs_.emplace_back();
  return std::make_unique<ScriptedQueuePair>(this, static_cast<uint32_t>(queue_pairs_.size()),
                                             options.max_inline_data);
}

absl::StatusOr<std::unique_ptr<verbs::SharedReceiveQueue>> ScriptedDevice::CreateSharedReceiveQueue(
    uint32_t, uint32_t) {
  auto queue = std::make_unique<ScriptedSharedQueue>(this);
  shared_queue = queue.get();
  return queue;
}

bool ScriptedDevice::NextDeviceEvent(verbs::DeviceEvent* event) {
  if (device_events_.empty()) return false;
  *event = device_events_.front();
  device_events_.pop_front();
  return true;
}

absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> ScriptedDevice::Connect(
    const verbs::Address&, verbs::QueuePair* queue_pair, const verbs::ConnectionParameters&) {
  queue_pairs_[queue_pair->number() - 1].state = QueuePairState::kReadyToSend;
  return std::make_unique<Id>();
}

bool ScriptedDevice::NextEvent(verbs::CmEvent* event) {
  if (events_.empty()) return false;
  *event = std::move(events_.front());
  events_.pop_front();
  return true;
}

}  // namespace baton::driver::testing
