#include "lib/nic/loopback_link.h"

#include <cstring>

#include "lib/base/status_macros.h"
#include "lib/nic/queue_pair.h"

namespace baton::nic {
namespace {

using verbs::soft::kMaxScatterGather;
using verbs::soft::OutFrame;
using verbs::soft::WireQueuePair;

constexpr int kFramesInTurn = 16;

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

absl::Status LoopbackLink::Connect(uint32_t peer) {
  BATON_RETURN_IF_ERROR(wire_->Bind(this));
  peer_ = peer;
  // It may have waited for us.
  if (WireQueuePair* const waiting = FindPeer(); waiting != nullptr) waiting->Posted();
  return absl::OkStatus();
}

WireQueuePair* LoopbackLink::FindPeer() {
  QueuePair* const found = objects_->FindQueuePair(peer_);
  QueuePairUse* const use = found == nullptr ? nullptr : found->use();
  if (use == nullptr || use->link().peer() != wire_->number()) return nullptr;
  const uint64_t theirs = use->link().peer_use_;
  if ((peer_use_ != 0 && peer_use_ != use->id()) || (theirs != 0 && theirs != use_)) return nullptr;
  peer_use_ = use->id();
  return &use->wire();
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
  engine_->MarkDirty(this);
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

}  // namespace baton::nic
