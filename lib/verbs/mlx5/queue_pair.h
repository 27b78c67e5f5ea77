#ifndef LIB_VERBS_MLX5_QUEUE_PAIR_H_
#define LIB_VERBS_MLX5_QUEUE_PAIR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/commands.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/queue_layout.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/send_queue.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

// A queue pair of mlx5's format, made and connected by its device.
//
// Thread-compatible; one process at a time. The successor of a killed driver calls TakeOver() after
// CompletionQueue::TakeOver() and FifoDoorbell::TakeOver(), and before it posts.
class QueuePair final : public verbs::QueuePair {
 public:
  // The queues, `commands` and `doorbell` outlive the queue pair.
  QueuePair(const QueuePairMemory& memory, uint32_t number, const SendQueueLimits& limits,
            Commands* commands, Doorbell* doorbell);
  ~QueuePair() override { commands_->DestroyQueuePair(number_); }

  uint32_t number() const override { return number_; }
  // Asks the device. Returns kError if the device is lost.
  QueuePairState state() const override;
  uint32_t max_inline_data() const override { return limits_.inline_bytes; }

  absl::Status PostSend(absl::Span<const SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;

  absl::Status SetError() override;
  // The caller also calls CompletionQueue::NoteReset, unless it has polled all completions of the
  // queue pair. One that is left would be taken for one of the next connection.
  absl::Status SetReset() override;
  absl::Status SetInit() override;
  void NoteConnected(bool reads) override;
  // Returns false if the peer answers no READs and atomics.
  bool may_read() const { return (Known() & kNoReads) == 0; }

  // Return the queues themselves, for a driver that writes its requests directly into them
  // (posting.h). Such a driver posts sends only if may_send(), READs and atomics only if
  // may_read(), and no receives if shares_receives(). It calls this class's Queue, not the queues'
  // own.
  SendQueue& sends() { return sends_; }
  ReceiveQueue& receives() { return receives_; }
  bool may_send() const { return (Known() & kMaySend) != 0; }
  bool shares_receives() const { return shares_receives_; }
  void Queue(const SendQueue::Batch& batch);
  void Queue(const ReceiveQueue::Batch& batch);
  mlx5::QueuePair* DirectQueues() override { return this; }

  // Rings once more for everything that is queued.
  void TakeOver();
  // Requires TakeOver(). Without it, the device may never execute the request that this returns.
  absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const override;
  // Return how many slots of sends, and how many receives, were queued since the reset, modulo
  // 2^16.
  uint16_t sends_queued() const { return sends_.queued(); }
  uint16_t receives_queued() const { return receives_.queued(); }

 private:
  uint32_t Known() const {
    return std::atomic_ref(cursors_->known).load(std::memory_order_relaxed);
  }
  void Know(uint32_t what);

  const uint32_t number_;
  const SendQueueLimits limits_;
  Commands* const commands_;
  Doorbell* const doorbell_;
  QueueCursors* const cursors_;
  __be32* const records_;
  const uint32_t* const failed_;
  SendQueue sends_;
  ReceiveQueue receives_;
  const bool shares_receives_;  // receives come from a shared queue
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_QUEUE_PAIR_H_
