// A queue pair whose user posts to it in this process.
#ifndef LIB_VERBS_SOFT_QUEUE_PAIR_H_
#define LIB_VERBS_SOFT_QUEUE_PAIR_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/verbs/soft/completion_queue.h"
#include "lib/verbs/soft/engine.h"
#include "lib/verbs/soft/memory_table.h"
#include "lib/verbs/soft/posted_work.h"
#include "lib/verbs/soft/wire_queue_pair.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// Numbers in use on a device.
using QueuePairNumbers = absl::flat_hash_set<uint32_t>;

class SoftQueuePair final : public QueuePair, private QueuePairUser, private CompletionSink {
 public:
  SoftQueuePair(Engine* engine, MemoryTable* memory, uint32_t number,
                const QueuePairOptions& options, QueuePairNumbers* numbers);
  ~SoftQueuePair() override;

  uint32_t number() const override { return wire_.number(); }
  QueuePairState state() const override { return wire_.state(); }
  uint32_t max_inline_data() const override { return sends_.window().max_inline(); }
  absl::Status PostSend(absl::Span<const SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status SetError() override;
  bool receives_drained() const override {
    return receives_.shared() && state() == QueuePairState::kError;
  }

  WireQueuePair& wire() { return wire_; }

 private:
  Engine& engine() override { return *engine_; }
  MemoryAccess& memory() override { return *memory_; }
  SendSource& sends() override { return sends_; }
  ReceiveSource& receives() override { return receives_; }
  CompletionSink& sink() override { return *this; }
  void OnError() override;
  bool CompleteSend(const SendWork& work, const Completion& completion) override;
  bool CompleteReceive(const ReceiveWork& work, const Completion& completion) override;

  absl::Status CheckSend(const SendRequest& request) const;
  bool Complete(SoftCompletionQueue* queue, uint64_t wr_id, Completion completion);
  void CompleteFlushed(SoftCompletionQueue* queue, uint64_t wr_id, CompletionOpcode opcode);

  Engine* const engine_;
  MemoryTable* const memory_;
  QueuePairNumbers* const numbers_;  // the device's; holds number()
  SoftCompletionQueue* const send_queue_;
  SoftCompletionQueue* const receive_queue_;
  PostedSends sends_;
  PostedReceives receives_;
  WireQueuePair wire_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_QUEUE_PAIR_H_
