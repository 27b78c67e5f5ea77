// The half of a queue pair that executes its requests, and those of its peer, over a link. Its user
// has the other half, which takes posted requests and keeps their completions.
#ifndef LIB_NIC_WIRE_QUEUE_PAIR_H_
#define LIB_NIC_WIRE_QUEUE_PAIR_H_

#include <sys/uio.h>

#include <cstdint>

#include "absl/status/status.h"
#include "lib/nic/event_loop.h"
#include "lib/nic/frame_stream.h"
#include "lib/nic/requester.h"
#include "lib/nic/responder.h"
#include "lib/nic/work_host.h"
#include "lib/nic/work_source.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// The connection under a queue pair, as the queue pair sees it. A queue pair without a connection
// has an object of this class itself, which does nothing.
class QueuePairLink {
 public:
  virtual ~QueuePairLink() = default;
  virtual void Posted() {}        // sends were posted: transmit now or soon
  virtual void WantTransmit() {}  // transmit in the next turn
  // Drops request frames that were generated and not begun.
  virtual void DropRequests() {}
  // Does the same, and makes a begun frame no longer read the user's memory.
  virtual void ReleaseRequests() {}
  // Makes responses that were generated no longer read the user's memory.
  virtual void KeepResponses() {}
  // See FrameStream::FirstUnwritten.
  virtual uint64_t FirstUnwritten(uint64_t end) const { return end; }
  virtual void Stall([[maybe_unused]] uint64_t duration_us) {}
  virtual bool stalled() const { return false; }
  virtual void CutLink() {}
  virtual void QueuePairGone() {}
};

// The services that a queue pair's user provides. All of them outlive the queue pair.
class QueuePairUser {
 public:
  virtual ~QueuePairUser() = default;
  virtual EventLoop& loop() = 0;
  virtual MemoryAccess& memory() = 0;
  virtual SendSource& sends() = 0;
  virtual ReceiveSource& receives() = 0;
  virtual CompletionSink& sink() = 0;
  // Called when the queue pair has entered the error state. Outstanding requests are flushed after
  // the call returns.
  virtual void OnError() = 0;
};

class WireQueuePair final : private WorkHost {
 public:
  struct Connection {
    Requester::Parameters requester;
    uint32_t responder_resources = 0;
    uint32_t rnr_timer_us = 0;
  };

  WireQueuePair(uint32_t number, QueuePairUser* user);
  ~WireQueuePair() override;
  WireQueuePair(const WireQueuePair&) = delete;
  WireQueuePair& operator=(const WireQueuePair&) = delete;

  uint32_t number() const { return number_; }
  QueuePairState state() const { return state_; }
  bool Allows(Opcode opcode) const { return requester_.Allows(opcode); }

  // Called when the user has queued requests, or receives in the error state. In that state both
  // are flushed.
  void Posted();
  void SetError();

  // Binds the queue pair to a connection: to one at a time, and only in INIT.
  absl::Status Bind(QueuePairLink* link);
  void Unbind() { link_ = &no_link_; }
  void Activate(const Connection& connection);  // to RTS
  void Break();  // the link is gone: to the error state, nothing more is sent

  // The link calls these from its FrameEndpoint, for frames of the data path.
  bool NextFrame(OutFrame* frame);
  int GatherPayload(const OutFrame& frame, uint32_t skip, iovec* iovecs, int max);
  bool OnFrame(const FrameHeader& header, const uint8_t* body);
  int PayloadTarget(uint32_t done, uint32_t length, iovec* iovecs, int max);
  bool OnFrameEnd();
  void AfterTransmit(bool wrote);

 private:
  EventLoop& loop() override { return user_->loop(); }
  MemoryAccess& memory() override { return user_->memory(); }
  void Fail() override;
  void WantTransmit() override { link_->WantTransmit(); }
  void DropRequestFrames() override { link_->DropRequests(); }
  uint64_t FirstUnwritten(uint64_t end) const override { return link_->FirstUnwritten(end); }
  void Stall(uint64_t duration_us) override { link_->Stall(duration_us); }
  bool stalled() const override { return link_->stalled(); }
  void CutLink() override { link_->CutLink(); }
  void LoseDevice() override { user_->loop().Lose(); }

  bool OnAnswer(const FrameHeader& header, const uint8_t* body);

  const uint32_t number_;
  QueuePairUser* const user_;
  QueuePairState state_ = QueuePairState::kInit;
  bool receiving_answer_ = false;  // the frame in progress is a READ response
  static QueuePairLink no_link_;
  QueuePairLink* link_ = &no_link_;
  Requester requester_;
  Responder responder_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_WIRE_QUEUE_PAIR_H_
