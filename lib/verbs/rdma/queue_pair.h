// Completion queues and queue pairs of the rdma device.
#ifndef LIB_VERBS_RDMA_QUEUE_PAIR_H_
#define LIB_VERBS_RDMA_QUEUE_PAIR_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/verbs/rdma/device_core.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

class RdmaCompletionQueue final : public CompletionQueue {
 public:
  static absl::StatusOr<std::unique_ptr<RdmaCompletionQueue>> Create(DeviceCore* core,
                                                                     uint32_t entries);
  // Makes an object for a described queue (Device::Describe), as that of each class here does.
  RdmaCompletionQueue(DeviceCore* core, const BatonInheritedCompletionQueue& described);
  ~RdmaCompletionQueue() override;

  absl::StatusOr<int> Poll(absl::Span<Completion> completions) override;
  absl::StatusOr<int> Take(absl::Span<Completion> taken) override;
  void Read(absl::Span<const Completion> taken, Completion* completions) override;
  absl::Status RequestNotification() override;
  void TakeOver() override;
  void ForgetNotification() override;
  void Describe(BatonInheritedCompletionQueue* described) const override;

  void AfterFork();

  // Called when the queue was overrun. Polls fail from then on, and the queue pairs that complete
  // here enter the error state.
  void SetUnusable();
  ibv_cq* queue() const { return queue_.get(); }
  int channel_fd() const { return channel_->fd; }

 private:
  // The state of the notification in our channel. Reading the channel is a system call.
  enum class Notice : uint8_t {
    kNone,   // there is none
    kAsked,  // there is one, or will be, for the next completion
    kDue,    // its completion was polled: it is there or about to come
  };

  explicit RdmaCompletionQueue(DeviceCore* core) : core_(core) {}
  void Tell(const ibv_wc& taken, Completion* completion);
  bool TakeNotification();
  void OnFailed(uint32_t queue_pair_number);

  DeviceCore* const core_;
  CompletionChannel channel_;  // for this queue alone, because its poller takes notifications
  VerbsQueue queue_;
  Notice notice_ = Notice::kNone;
  bool watched_ = false;  // this process has asked for a notification
  bool unusable_ = false;
  bool predecessors_notices_ = false;  // notifications of other processes may be in our channel
};

// The connection of a queue pair, as the queue pair sees it.
class QueuePairLink {
 public:
  virtual ~QueuePairLink() = default;
  virtual void QueuePairGone() = 0;
  // Called when data of the peer arrives before its message that it is ready (IBV_EVENT_COMM_EST).
  virtual void PeerIsReady() = 0;
};

class RdmaQueuePair final : public QueuePair {
 public:
  static absl::StatusOr<std::unique_ptr<RdmaQueuePair>> Create(DeviceCore* core,
                                                               const QueuePairOptions& options);
  RdmaQueuePair(DeviceCore* core, const BatonInheritedQueuePair& described,
                const QueuePairOptions& options);
  ~RdmaQueuePair() override;

  uint32_t number() const override { return queue_pair_->qp_num; }
  // Asks the device unless the answer is known, because a queue pair that refuses a request of its
  // peer enters the error state without a completion.
  QueuePairState state() const override;
  uint32_t max_inline_data() const override { return max_inline_data_; }
  absl::Status PostSend(absl::Span<const SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status SetError() override;
  void NoteFailed();
  absl::Status SetReset() override;
  absl::Status SetInit() override;
  bool holds_no_receive() const override;
  void NoteConnected(bool reads) override;
  void Describe(BatonInheritedQueuePair* described) const override;

  // Called when the last of its shared receives has completed, or has had the time to.
  void OnLastReceive(const char* how);
  // Forgets it and the wait for it, because it belongs to a former or ending use of the queue pair.
  void ForgetLastReceive() const;

  // Binds to a connection: to one at a time, and only in INIT.
  absl::Status Bind(QueuePairLink* link);
  void Unbind() { link_ = nullptr; }
  // Binds to a connection that a former opener had bound it to.
  void Rejoin(QueuePairLink* link) { link_ = link; }
  // Learns what a former opener has made of it.
  void OnFormer();
  // Asks the device what its connection has.
  ReadDepths AskDepths() const;
  // Moves to `state` with the attributes that the connection manager has for the id of this number.
  absl::Status Advance(uint32_t id, QueuePairState state, const ReadDepths& depths = {});
  QueuePairLink* link() const { return link_; }
  bool CompletesIn(const RdmaCompletionQueue* queue) const {
    return options_.send_queue == queue || options_.receive_queue == queue;
  }

 private:
  RdmaQueuePair(DeviceCore* core, const QueuePairOptions& options)
      : core_(core), options_(options) {}
  // Moves the queue pair to the state `to`, which errors call `name`, with these attributes.
  absl::Status Modify(ibv_qp_state to, const char* name, ibv_qp_attr attributes = {}, int mask = 0);
  absl::Status FlushQueues();
  absl::Status MakeReady();  // to INIT
  void AwaitLastReceive() const;
  // Asks the device for those of `mask` (IBV_QP_*).
  bool Query(int mask, ibv_qp_attr* attributes) const;
  QueuePairState AskState() const;
  absl::Status CheckSend(const SendRequest& request) const;
  absl::Status CheckSpecial(const SendRequest& request) const;

  DeviceCore* const core_;
  const QueuePairOptions options_;
  VerbsQueuePair queue_pair_;
  uint32_t max_inline_data_ = 0;
  mutable QueuePairState state_ = QueuePairState::kInit;  // as far as we know
  QueuePairLink* link_ = nullptr;
  mutable bool reads_ = false;  // the peer answers READs and atomics
  mutable bool holds_no_receive_ = false;
  mutable bool last_receive_awaited_ = false;
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_QUEUE_PAIR_H_
