#include "lib/nic/queue_pair.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/nic/limits.h"

namespace baton::nic {
namespace {

using verbs::mlx5::LoadRecord;

constexpr uint32_t kReads = 16;  // READs and atomics that a peer on the same NIC answers at a time
constexpr uint32_t kRetries = 7;
constexpr uint32_t kLeastRnrTimerUs = 10;  // as InfiniBand has it
constexpr uint64_t kAckTimeoutNs = 10'000'000;

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
      id_(++host->objects->last_use),
      memory_(host->objects, parts->domain),
      sends_(parts->sends, &parts->records[MLX5_SND_DBR], parts->window),
      receives_(parts->receives, &parts->records[MLX5_RCV_DBR]),
      shared_receives_(ShareReceives(*parts, [this] { OnSharedReceive(); })),
      completions_(parts->number, parts->send_queue, parts->receive_queue),
      link_(host->objects, host->engine, &wire_, id_),
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

absl::Status QueuePair::Connect(uint32_t peer, uint32_t rnr_retry_count, uint32_t rnr_timer_us) {
  verbs::soft::WireQueuePair::Connection connection;
  connection.requester.initiator_depth = kReads;
  connection.requester.retry_count = kRetries;
  connection.requester.rnr_retry_count = rnr_retry_count;
  connection.requester.ack_timeout_ns = kAckTimeoutNs;
  connection.responder_resources = kReads;
  connection.rnr_timer_us = std::max(rnr_timer_us, kLeastRnrTimerUs);
  BATON_RETURN_IF_ERROR(use_->link().Connect(peer));
  use_->wire().Activate(connection);
  return absl::OkStatus();
}

}  // namespace baton::nic
