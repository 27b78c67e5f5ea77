#include "tests/lib/nic/loopback_link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/mlx5/format.h"

namespace baton::nic {
namespace {

using verbs::soft::kMaxScatterGather;
using verbs::soft::OutFrame;
using verbs::soft::WireQueuePair;

constexpr int kFramesInTurn = 16;
constexpr uint32_t kReads = 16;  // READs and atomics that a peer on the same NIC answers at a time
constexpr uint32_t kRetries = 7;
constexpr uint32_t kEndlessRnrRetries = 7;
constexpr uint32_t kLeastRnrTimerUs = 10;     // as InfiniBand has it
constexpr uint32_t kMaxRnrTimerUs = 655'360;  // the longest that InfiniBand can encode
constexpr uint64_t kAckTimeoutNs = 10'000'000;

std::atomic<uint64_t> last_use{0};

// Copies to `to`, which has as many bytes, from `from` on. They may overlap.
class Source {
 public:
  explicit Source(const iovec* from) : from_(from) {}
  void CopyTo(const iovec& to) {
    for (size_t filled = 0; filled < to.iov_len;) {
      const size_t here = std::min(from_->iov_len - done_, to.iov_len - filled);
      std::memmove(static_cast<uint8_t*>(to.iov_base) + filled,
                   static_cast<const uint8_t*>(from_->iov_base) + done_, here);
      Skip(here);
      filled += here;
    }
  }

 private:
  void Skip(size_t bytes) {
    done_ += bytes;
    if (done_ < from_->iov_len) return;
    ++from_;
    done_ = 0;
  }

  const iovec* from_;
  size_t done_ = 0;  // of *from_
};

}  // namespace

LoopbackLink::LoopbackLink(const Host& host, WireQueuePair* wire, uint32_t peer)
    : objects_(host.objects), loop_(host.loop), wire_(wire), use_(++last_use), peer_(peer) {}

absl::Status LoopbackLink::Connect(const Host& host, const control::Modify& message,
                                   QueuePair* queue_pair) {
  if (message.rnr_retry_count > kEndlessRnrRetries || message.rnr_timer_us > kMaxRnrTimerUs) {
    return absl::InvalidArgumentError(absl::StrCat("rnr_retry_count: ", message.rnr_retry_count,
                                                   ", rnr_timer_us: ", message.rnr_timer_us,
                                                   ": at most 7 and ", kMaxRnrTimerUs));
  }
  if (message.peer == 0 || message.peer > verbs::mlx5::kNumberMask) {
    return absl::InvalidArgumentError(absl::StrCat("peer: ", message.peer));
  }
  WireQueuePair::Connection connection;
  connection.requester.initiator_depth = kReads;
  connection.requester.retry_count = kRetries;
  connection.requester.rnr_retry_count = message.rnr_retry_count;
  connection.requester.ack_timeout_ns = kAckTimeoutNs;
  connection.responder_resources = kReads;
  connection.rnr_timer_us = std::max(message.rnr_timer_us, kLeastRnrTimerUs);
  QueuePairUse* const use = queue_pair->use();
  auto made = std::make_unique<LoopbackLink>(host, &use->wire(), message.peer);
  BATON_RETURN_IF_ERROR(use->wire().Bind(made.get()));
  LoopbackLink* const link = made.get();
  use->link = std::move(made);
  // It may have waited for us.
  if (WireQueuePair* const waiting = link->FindPeer(); waiting != nullptr) waiting->Posted();
  use->wire().Activate(connection);
  return absl::OkStatus();
}

WireQueuePair* LoopbackLink::FindPeer() {
  QueuePair* const found = objects_->FindQueuePair(peer_);
  QueuePairUse* const use = found == nullptr ? nullptr : found->use();
  // A NIC that has this hook has no links of another class there.
  auto* const theirs = use == nullptr ? nullptr : static_cast<LoopbackLink*>(use->link.get());
  if (theirs == nullptr || theirs->peer_ != wire_->number()) return nullptr;
  if (peer_use_ != 0 && peer_use_ != theirs->use_) return nullptr;
  if (theirs->peer_use_ != 0 && theirs->peer_use_ != use_) return nullptr;
  peer_use_ = theirs->use_;
  return theirs->wire_;
}

void LoopbackLink::OnTransmit() {
  WireQueuePair* const peer = FindPeer();
  bool wrote = false;
  OutFrame frame;
  // Frames to a peer that is gone are lost.
  for (int i = 0; i < kFramesInTurn; ++i) {
    if (peer == nullptr && peer_use_ == 0) return;
    if (!wire_->NextFrame(&frame)) return wire_->AfterTransmit(wrote);
    if (peer == nullptr) continue;
    wrote = true;
    if (!Deliver(&frame, peer)) return wire_->Break();
  }
  wire_->AfterTransmit(wrote);
  loop_->MarkDirty(this);
}

// Returns false if what is to be sent has been deregistered since it was begun.
bool LoopbackLink::Deliver(OutFrame* frame, WireQueuePair* peer) {
  iovec from[kMaxScatterGather];
  frame->header.length = frame->body_size + frame->payload_size;
  if (frame->payload_size > 0 && wire_->GatherPayload(*frame, 0, from, kMaxScatterGather) < 0) {
    return false;
  }
  if (!peer->OnFrame(frame->header, frame->body)) return false;
  Source source(from);
  for (uint32_t done = 0; done < frame->payload_size;) {
    iovec to[kMaxScatterGather];
    const int used = peer->PayloadTarget(done, frame->payload_size - done, to, kMaxScatterGather);
    if (used <= 0) break;  // it has refused
    for (int i = 0; i < used; done += static_cast<uint32_t>(to[i++].iov_len)) source.CopyTo(to[i]);
  }
  return peer->OnFrameEnd();
}

verbs::soft::SoftDeviceOptions WithLoopback(verbs::soft::SoftDeviceOptions options) {
  options.connect = LoopbackLink::Connect;
  return options;
}

}  // namespace baton::nic
