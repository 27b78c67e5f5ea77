#include "worker/examples/nvmed/transaction.h"

#include <string>

#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"

namespace baton::nvmed {
namespace {

// With more staged work requests nothing is begun in a transaction: the completions of one turn,
// and one command more, add less than 500.
constexpr uint32_t kStagedAtOnce = 3500;

}  // namespace

void Transaction::Forget() {
  shard_ = nullptr;
  touched_.clear();
  ends_.clear();
  accepted_receives_ = staged_ = 0;
}

void Transaction::Forget(const Queue& queue) {
  std::erase(touched_, &queue);
  std::erase(ends_, &queue);
}

absl::Status Transaction::Receive(Queue& queue, uint16_t slot) {
  ++staged_;
  const Buffer buffer = resources_.plan.Capsule(*queue.connection, slot);
  return shard_->Receive(*queue.connection, {&buffer, 1},
                         Pack({Purpose::kCapsule, slot, std::nullopt}));
}

bool Transaction::PostReceive(Queue& queue, uint16_t slot) {
  const absl::Status status = Receive(queue, slot);
  if (!status.ok()) Drop(queue, MessageOf(status));
  return status.ok();
}

bool Transaction::Touch(Queue& queue) {
  if (queue.touched) return true;
  const absl::Span<const uint8_t> state(reinterpret_cast<const uint8_t*>(&queue.state),
                                        sizeof(queue.state));
  const absl::Status status = shard_->SetState(*queue.connection, state, kStateVersion);
  if (absl::IsResourceExhausted(status)) return false;
  queue.touched = true;
  touched_.push_back(&queue);
  return true;
}

bool Transaction::MakeRoom(Queue& queue) {
  if (staged_ <= kStagedAtOnce && Touch(queue)) return true;
  Commit();
  return staged_ == 0 && Touch(queue);
}

void Transaction::Drop(Queue& queue, std::string_view why) {
  if (queue.state.phase == QueueState::kEnding) return;
  spdlog::error("queue {} of controller {}, connection {} of {}, is disconnected: {}",
                queue.state.id, queue.state.controller, queue.connection->index(),
                std::string(queue.connection->peer_address()), std::string(why));
  queue.state.phase = QueueState::kEnding;
  End(queue);
}

void Transaction::EndConnections() {
  std::vector<Queue*> later;
  for (Queue* const queue : std::exchange(ends_, {})) {
    absl::Status status = absl::ResourceExhaustedError("");
    if (MakeRoom(*queue)) status = shard_->Disconnect(*queue->connection);
    if (absl::IsResourceExhausted(status)) {
      later.push_back(queue);
    } else if (!status.ok()) {
      spdlog::error("connection {}: disconnecting failed: {}", queue->connection->index(),
                    std::string(status.message()));
    }
  }
  ends_.insert(ends_.end(), later.begin(), later.end());
}

void Transaction::Commit() {
  if (shard_ == nullptr) return;
  for (Queue* const queue : touched_) {
    absl::Span<const PendingCommand> commands;
    if (queue->pending_count > 0) commands = queue->pending;
    WriteQueue(queue->state, commands, &state_bytes_);
    queue->touched = false;
    const absl::Status status = shard_->SetState(*queue->connection, state_bytes_, kStateVersion);
    if (!status.ok()) Drop(*queue, MessageOf(status));
  }
  touched_.clear();
  Registry& registry = resources_.registry;
  if (registry.touched()) {
    const absl::Status status = shard_->SetShardState(registry.Save(), kStateVersion);
    if (!status.ok()) spdlog::error("state of the shard: {}", std::string(status.message()));
    registry.Saved();
  }
  BATON_CRASH_POINT("nvmed-commit");
  const absl::Status status = shard_->Commit();
  if (status.ok()) {
    accepted_receives_ = staged_ = 0;
    chunks_freed_ |= resources_.chunks.Committed();
  } else {
    spdlog::error("commit: {}", std::string(status.message()));
  }
}

}  // namespace baton::nvmed
