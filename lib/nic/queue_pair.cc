#include "lib/nic/queue_pair.h"

#include <atomic>

#include "absl/strings/str_cat.h"

namespace baton::nic {
namespace {

using verbs::mlx5::LoadRecord;

std::optional<verbs::soft::SharedReceives> ShareReceives(const QueuePairParts& parts,
                                                         std::function<void()> taken) {
  OwnedSharedReceiveQueue* const shared = parts.shared_receive_queue;
  if (shared == nullptr) return std::nullopt;
  return std::optional<verbs::soft::SharedReceives>(std::in_place, shared->reader.get(),
                                                    shared->max_sges, std::move(taken));
}

}  // namespace

QueuePairUse::QueuePairUse(const QueuePairParts* parts, const Host* host)
    : parts_(parts),
      host_(host),
      memory_(host->objects, parts->domain),
      sends_(parts->sends, &parts->records[MLX5_SND_DBR], parts->window),
      receives_(parts->receives, &parts->records[MLX5_RCV_DBR]),
      shared_receives_(ShareReceives(*parts, [this] { OnSharedReceive(); })),
      completions_(parts->number, parts->send_queue, parts->receive_queue),
      wire_(parts->number, this) {
  completions_.Share(parts->shared_receive_queue_number);
}

// The client's driver stores a record, fences, and looks at `failed`.
void QueuePairUse::OnError() {
  std::atomic_ref(*parts_->failed).store(1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  parts_->flush_later(parts_->number);
  if (!sends_.error().ok()) Complain("send", sends_.error().message());
  if (!receives_.error().ok()) Complain("receive", receives_.error().message());
  if (shared_receives_.has_value()) {
    parts_->tell(verbs::DeviceEventType::kLastWorkRequestReached, parts_->number);
  }
}

void QueuePairUse::OnSharedReceive() {
  OwnedSharedReceiveQueue* const shared = parts_->shared_receive_queue;
  if (!shared->reader->error().ok() && !std::exchange(shared->failed, true)) {
    Complain("shared receive", shared->reader->error().message());
    parts_->tell(verbs::DeviceEventType::kSharedReceiveQueueFailed,
                 parts_->shared_receive_queue_number);
  }
  if (shared->reader->Waiting() >= shared->limit) return;
  shared->limit = 0;
  parts_->tell(verbs::DeviceEventType::kSharedReceiveQueueLow, parts_->shared_receive_queue_number);
}

void QueuePairUse::Complain(absl::string_view what, absl::string_view why) const {
  host_->complain(parts_->domain.owner,
                  absl::StrCat(what, " queue of queue pair ", parts_->number, ": ", why));
}

void QueuePair::Reset() {
  use_.reset();
  std::atomic_ref(*parts_.failed).store(0, std::memory_order_release);
}

absl::Status QueuePair::Init() {
  if (LoadRecord(&parts_.records[0]) != 0 || LoadRecord(&parts_.records[1]) != 0) {
    return absl::InvalidArgumentError("records: not 0; set them to 0 after the reset");
  }
  use_ = std::make_unique<QueuePairUse>(&parts_, host_);
  return absl::OkStatus();
}

}  // namespace baton::nic
