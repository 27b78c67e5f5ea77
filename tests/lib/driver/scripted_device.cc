#include "tests/lib/driver/scripted_device.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lib/arena/layout.h"

namespace baton::driver::testing {

using verbs::Completion;
using verbs::CompletionStatus;
using verbs::QueuePairState;

class ScriptedQueue final : public verbs::CompletionQueue {
 public:
  explicit ScriptedQueue(ScriptedDevice* device) : device_(device) {}

  absl::StatusOr<int> Poll(absl::Span<Completion> completions) override {
    if (device_->when_polled) device_->when_polled();
    auto& ready = device_->completions_;
    const size_t count = ready.Copy(completions);
    const auto death = count == 0
                           ? ScriptedDevice::PollDeath::kNone
                           : std::exchange(device_->die_polling, ScriptedDevice::PollDeath::kNone);
    if (death == ScriptedDevice::PollDeath::kHalfWritten) {
      completions[count - 1].status = CompletionStatus::kGeneralError;
      completions[count - 1].byte_len = 4711;
    }
    const bool taken = death == ScriptedDevice::PollDeath::kNone ||
                       death == ScriptedDevice::PollDeath::kAfterTaking;
    ready.Drop(taken ? count : count - 1);
    if (death != ScriptedDevice::PollDeath::kNone) throw DriverDied();
    return static_cast<int>(count);
  }
  void TakeOver() override { device_->is_unrung = false; }
  absl::Status RequestNotification() override { return absl::OkStatus(); }

 private:
  ScriptedDevice* const device_;
};

class ScriptedId final : public verbs::testing::FakeConnectionId {
 public:
  explicit ScriptedId(ScriptedDevice* device) : device_(device) { device->ids_.push_back(this); }
  ~ScriptedId() override { std::erase(device_->ids_, this); }

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
    return device_->Post(&state_of().sends, {requests.begin(), requests.end()}, posted);
  }
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    return device_->Post(&state_of().receives, {requests.begin(), requests.end()}, posted);
  }
  absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const override {
    if (absl::Status asked = device_->CheckAsked(); !asked.ok()) return asked;
    return device_->LastOf(receive ? state_of().receives : state_of().sends, number_, receive);
  }
  absl::Status SetError() override {
    if (device_->refuse_errors > 0) {
      --device_->refuse_errors;
      return absl::InternalError("the device stops nothing");
    }
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
    return device_->Post(&device_->shared_, {requests.begin(), requests.end()}, posted);
  }
  absl::Status ArmLimit(uint32_t limit) override {
    device_->limit = limit;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> IsQueued(uint64_t wr_id) const override {
    if (absl::Status asked = device_->CheckAsked(); !asked.ok()) return asked;
    const auto is_it = [wr_id](const auto& one) { return one.wr_id == wr_id; };
    return std::any_of(device_->shared_.begin(), device_->shared_.end(), is_it) ||
           device_->completions_.Has(wr_id);
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
  return completions_.Last(queue_pair, receive);
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
  Completion completion = request.Complete(queue_pair, status);
  completion.byte_len = static_cast<uint32_t>(bytes.size());
  if (request.receive) request.Scatter(bytes);
  completions_.Add(completion);
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

verbs::ConnectionId* ScriptedDevice::IdOf(uint32_t connection) const {
  const auto found = std::find_if(ids_.begin(), ids_.end(), [connection](const auto* id) {
    return reinterpret_cast<uintptr_t>(id->context) == uintptr_t{connection} + 1;
  });
  return found == ids_.end() ? nullptr : *found;
}

verbs::DeviceLimits ScriptedDevice::limits() const {
  verbs::DeviceLimits limits = FakeDevice::limits();
  limits.max_shared_receive_queues = limits.max_shared_receive_requests = 1 << 16;
  limits.max_shared_receive_scatter_gather = arena::kMaxSges;
  return limits;
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

absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> ScriptedDevice::Connect(
    const verbs::Address&, verbs::QueuePair* queue_pair, const verbs::ConnectionParameters&) {
  queue_pairs_[queue_pair->number() - 1].state = QueuePairState::kReadyToSend;
  return std::make_unique<ScriptedId>(this);
}

}  // namespace baton::driver::testing
