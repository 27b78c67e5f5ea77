#ifndef TESTS_LIB_NIC_LOOPBACK_LINK_H_
#define TESTS_LIB_NIC_LOOPBACK_LINK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "lib/nic/control_format.h"
#include "lib/nic/event_loop.h"
#include "lib/nic/host.h"
#include "lib/nic/objects.h"
#include "lib/nic/queue_pair.h"
#include "lib/nic/soft_options.h"
#include "lib/nic/wire_queue_pair.h"

namespace baton::nic {

// The link of a queue pair to one of the same NIC. Frames go from hand to hand, each as a whole.
//
// Until the peer is connected, too, nothing is sent. If the peer is destroyed or reset then,
// nothing answers any more, whoever gets its number: the requester gives up.
class LoopbackLink final : public verbs::soft::QueuePairLink, private verbs::soft::Pollable {
 public:
  // See SoftDeviceOptions::connect.
  static absl::Status Connect(const Host& host, const control::Modify& message,
                              QueuePair* queue_pair);

  // `host` and `wire`, which Connect() binds to it, outlive the link.
  LoopbackLink(const Host& host, verbs::soft::WireQueuePair* wire, uint32_t peer);
  ~LoopbackLink() override { loop_->Forget(this); }
  LoopbackLink(const LoopbackLink&) = delete;
  LoopbackLink& operator=(const LoopbackLink&) = delete;

  void Posted() override { loop_->MarkDirty(this); }
  void WantTransmit() override { loop_->MarkDirty(this); }

 private:
  void OnReady(uint32_t) override {}
  void OnTransmit() override;
  verbs::soft::WireQueuePair* FindPeer();
  bool Deliver(verbs::soft::OutFrame* frame, verbs::soft::WireQueuePair* peer);

  const Objects* const objects_;
  verbs::soft::EventLoop* const loop_;
  verbs::soft::WireQueuePair* const wire_;
  const uint64_t use_;     // tells the uses of a queue pair apart: each link has another value
  const uint32_t peer_;    // the number of the queue pair that it is connected to
  uint64_t peer_use_ = 0;  // not 0: it has answered
};

// The options of a NIC whose clients connect queue pairs by MODIFY.
verbs::soft::SoftDeviceOptions WithLoopback(verbs::soft::SoftDeviceOptions options = {});

}  // namespace baton::nic

#endif  // TESTS_LIB_NIC_LOOPBACK_LINK_H_
