// Completion queues and queue pairs of the rdma device. Providers round depths up: the caller
// bounds what is outstanding.
#ifndef LIB_VERBS_RDMA_QUEUE_PAIR_H_
#define LIB_VERBS_RDMA_QUEUE_PAIR_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

class RdmaCompletionQueue final : public CompletionQueue {
 public:
  // `channel` outlives it.
  static absl::StatusOr<std::unique_ptr<RdmaCompletionQueue>> Create(ibv_context* context,
                                                                     uint32_t entries,
                                                                     ibv_comp_channel* channel);
  ~RdmaCompletionQueue() override;

  absl::StatusOr<int> Poll(absl::Span<Completion> completions) override;
  absl::Status RequestNotification() override;

  void NoteEvent() { ++unacknowledged_events_; }  // ibv_get_cq_event gave one of ours
  ibv_cq* queue() const { return queue_.get(); }

 private:
  VerbsQueue queue_;
  uint32_t unacknowledged_events_ = 0;
};

class RdmaQueuePair final : public QueuePair {
 public:
  static absl::StatusOr<std::unique_ptr<RdmaQueuePair>> Create(ibv_pd* domain, uint8_t port,
                                                               const QueuePairOptions& options);

  uint32_t number() const override { return queue_pair_->qp_num; }
  QueuePairState state() const override { return state_; }
  absl::Status PostSend(absl::Span<const SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status SetError() override;

  // To the state, with the attributes that the connection manager has for `id`.
  absl::Status Advance(rdma_cm_id* id, QueuePairState state);
  bool has_shared_receive_queue() const { return queue_pair_->srq != nullptr; }

 private:
  explicit RdmaQueuePair(const QueuePairOptions& options) : options_(options) {}

  const QueuePairOptions options_;
  VerbsQueuePair queue_pair_;
  QueuePairState state_ = QueuePairState::kInit;
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_QUEUE_PAIR_H_
