#include "lib/verbs/mlx5/queue_pair.h"

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/mlx5/posting.h"

namespace baton::verbs::mlx5 {

QueuePair::QueuePair(const QueuePairMemory& memory, uint32_t number, const SendQueueLimits& limits,
                     Commands* commands, Doorbell* doorbell)
    : number_(number),
      limits_(limits),
      commands_(commands),
      doorbell_(doorbell),
      cursors_(memory.sends.cursors),
      records_(memory.records),
      failed_(memory.failed),
      sends_(memory.sends, number, limits, doorbell),
      receives_(memory.receives),
      shares_receives_(memory.receives.slot_count == 0) {}

QueuePairState QueuePair::state() const {
  return commands_->Query(number_).value_or(QueuePairState::kError);
}

void QueuePair::Know(uint32_t what) {
  std::atomic_ref(cursors_->known).store(what, std::memory_order_relaxed);
}

absl::Status QueuePair::PostSend(absl::Span<const SendRequest> requests, size_t* posted) {
  *posted = 0;
  if ((Known() & kMaySend) == 0) {
    const QueuePairState now = state();
    if (now != QueuePairState::kReadyToSend && now != QueuePairState::kError) {
      return absl::FailedPreconditionError(
          absl::StrCat("send posted before queue pair ", number_, " is connected"));
    }
    Know(kMaySend);
  }
  return sends_.Post(requests, posted);
}

absl::Status QueuePair::PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) {
  *posted = 0;
  if (shares_receives_) {
    return absl::FailedPreconditionError(absl::StrCat("receive posted to queue pair ", number_,
                                                      ", which takes them from a shared queue"));
  }
  absl::Status status = receives_.Post(requests, posted);
  if (*posted > 0) doorbell_->ReceivesPosted(number_, *failed_);
  return status;
}

void QueuePair::Queue(const SendQueue::Batch& batch) { sends_.Queue(batch); }

void QueuePair::Queue(const ReceiveQueue::Batch& batch) {
  receives_.Queue(batch);
  doorbell_->ReceivesPosted(number_, *failed_);
}

absl::Status QueuePair::SetError() {
  BATON_RETURN_IF_ERROR(commands_->Modify(number_, QueuePairState::kError));
  Know(kMaySend);
  return absl::OkStatus();
}

// The device does not look at the records of a reset queue pair, so they can be cleared.
absl::Status QueuePair::SetReset() {
  Know(0);
  BATON_RETURN_IF_ERROR(commands_->Modify(number_, QueuePairState::kReset));
  StoreRecord(&records_[MLX5_SND_DBR], 0);
  StoreRecord(&records_[MLX5_RCV_DBR], 0);
  // CompletionQueue::TakeOver brings a cursor up to date only if `use` is unchanged.
  std::atomic_ref use(cursors_->use);
  use.store(use.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  std::atomic_ref(cursors_->sent).store(0, std::memory_order_release);
  std::atomic_ref(cursors_->received).store(0, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status QueuePair::SetInit() { return commands_->Modify(number_, QueuePairState::kInit); }

void QueuePair::NoteConnected(bool reads) { Know(reads ? kMaySend : kMaySend | kNoReads); }

// Each ring may have to wake the device, and an heir may have a thousand queues that are idle.
void QueuePair::TakeOver() {
  if (sends_.has_outstanding()) {
    sends_.RingAgain();
  }
  if (!shares_receives_) doorbell_->ReceivesPosted(number_, *failed_);
}

absl::StatusOr<std::optional<uint64_t>> QueuePair::LastQueued(bool receive) const {
  if (!receive) return sends_.LastQueued();
  if (shares_receives_) return std::nullopt;
  return receives_.LastQueued();
}

}  // namespace baton::verbs::mlx5
