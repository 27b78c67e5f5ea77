#ifndef LIB_NIC_LOOPBACK_LINK_H_
#define LIB_NIC_LOOPBACK_LINK_H_

#include <cstdint>

#include "lib/nic/engine.h"
#include "lib/nic/objects.h"
#include "lib/nic/wire_queue_pair.h"

namespace baton::nic {

// The link of a queue pair to one of the same NIC. Frames go from hand to hand, each as a whole.
//
// Until the peer is connected, too, nothing is sent. If the peer is destroyed or reset then,
// nothing answers any more, whoever gets its number: the requester gives up.
class LoopbackLink final : public verbs::soft::QueuePairLink, private verbs::soft::Pollable {
 public:
  // All of them outlive the link. `wire` is bound to it by Connect(). `use`: see QueuePairUse::id.
  LoopbackLink(const Objects* objects, verbs::soft::Engine* engine,
               verbs::soft::WireQueuePair* wire, uint64_t use)
      : objects_(objects), engine_(engine), wire_(wire), use_(use) {}
  ~LoopbackLink() override { engine_->Forget(this); }
  LoopbackLink(const LoopbackLink&) = delete;
  LoopbackLink& operator=(const LoopbackLink&) = delete;

  absl::Status Connect(uint32_t peer);
  // The number of the queue pair that it was connected to. 0: it was to none.
  uint32_t peer() const { return peer_; }

  void Posted() override { engine_->MarkDirty(this); }
  void WantTransmit() override { engine_->MarkDirty(this); }

 private:
  void OnReady(uint32_t) override {}
  void OnTransmit() override;
  verbs::soft::WireQueuePair* FindPeer();
  bool Deliver(verbs::soft::OutFrame* frame, verbs::soft::WireQueuePair* peer);

  const Objects* const objects_;
  verbs::soft::Engine* const engine_;
  verbs::soft::WireQueuePair* const wire_;
  const uint64_t use_;
  uint32_t peer_ = 0;
  uint64_t peer_use_ = 0;  // not 0: it has answered
};

}  // namespace baton::nic

#endif  // LIB_NIC_LOOPBACK_LINK_H_
