#ifndef LIB_VERBS_SOFT_QUEUE_PAIR_H_
#define LIB_VERBS_SOFT_QUEUE_PAIR_H_

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "lib/verbs/soft/completion_queue.h"
#include "lib/verbs/soft/posted_work.h"
#include "lib/verbs/soft/requester.h"
#include "lib/verbs/soft/responder.h"
#include "lib/verbs/soft/work_host.h"

namespace baton::verbs::soft {

// Numbers in use on a device.
using QueuePairNumbers = absl::flat_hash_set<uint32_t>;

// The connection under a queue pair, as the queue pair sees it.
class QueuePairLink {
 public:
  virtual ~QueuePairLink() = default;
  virtual void Posted() = 0;        // sends were posted: transmit now or soon
  virtual void WantTransmit() = 0;  // in the next turn
  virtual FrameStream& stream() = 0;
  virtual void Stall(uint64_t duration_us) = 0;
  virtual void CutLink() = 0;
  virtual void QueuePairGone() = 0;
};

class SoftQueuePair final : public QueuePair, private WorkHost, private CompletionSink {
 public:
  struct Connection {
    Requester::Parameters requester;
    uint32_t responder_resources = 0;
    uint32_t rnr_timer_us = 0;
  };

  SoftQueuePair(Engine* engine, MemoryTable* memory, uint32_t number,
                const QueuePairOptions& options, QueuePairNumbers* numbers);
  ~SoftQueuePair() override;

  uint32_t number() const override { return number_; }
  QueuePairState state() const override { return state_; }
  uint32_t max_inline_data() const override { return sends_.window().max_inline(); }
  absl::Status PostSend(absl::Span<const SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status SetError() override;
  bool receives_drained() const override {
    return receives_.shared() && state_ == QueuePairState::kError;
  }

  // A queue pair is bound to one connection at a time, and only in INIT.
  absl::Status Bind(QueuePairLink* link);
  void Unbind() { link_ = nullptr; }
  void Activate(const Connection& connection);  // to RTS
  void Break();  // the link is gone: to the error state, nothing more is sent

  // The link's FrameEndpoint, for frames of the data path.
  bool NextFrame(OutFrame* frame);
  int GatherPayload(const OutFrame& frame, uint32_t skip, iovec* iovecs, int max);
  bool OnFrame(const FrameHeader& header, const uint8_t* body);
  int PayloadTarget(uint32_t done, uint32_t length, iovec* iovecs, int max);
  bool OnFrameEnd();
  void AfterTransmit(bool wrote);

 private:
  Engine& engine() override { return *engine_; }
  MemoryTable& memory() override { return *memory_; }
  bool CompleteSend(const SendWork& work, const Completion& completion) override;
  bool CompleteReceive(const ReceiveWork& work, const Completion& completion) override;
  void Fail() override;
  void WantTransmit() override;
  void DropRequestFrames() override;
  uint64_t FirstUnwritten(uint64_t end) const override;
  void Stall(uint64_t duration_us) override;
  void CutLink() override;
  void LoseDevice() override;

  absl::Status CheckSend(const SendRequest& request) const;
  bool Complete(SoftCompletionQueue* queue, uint64_t wr_id, Completion completion);
  void CompleteFlushed(SoftCompletionQueue* queue, uint64_t wr_id, CompletionOpcode opcode);
  bool OnAnswer(const FrameHeader& header, const uint8_t* body);

  Engine* const engine_;
  MemoryTable* const memory_;
  const uint32_t number_;
  QueuePairState state_ = QueuePairState::kInit;
  bool receiving_answer_ = false;    // the frame in progress is a READ response
  QueuePairNumbers* const numbers_;  // the device's; holds number_
  SoftCompletionQueue* const send_queue_;
  SoftCompletionQueue* const receive_queue_;
  QueuePairLink* link_ = nullptr;
  PostedSends sends_;
  PostedReceives receives_;
  Requester requester_;
  Responder responder_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_QUEUE_PAIR_H_
