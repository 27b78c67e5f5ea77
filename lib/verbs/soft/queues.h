// Queues of the soft device. They lie in shared memory in mlx5's format, and a NIC executes them.
#ifndef LIB_VERBS_SOFT_QUEUES_H_
#define LIB_VERBS_SOFT_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/client.h"
#include "lib/verbs/mlx5/commands.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/fifo_doorbell.h"
#include "lib/verbs/mlx5/queue_layout.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/soft/queue_memory.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

class SoftCompletionQueue;
class SoftQueuePair;

// The state that the queues of a device share. It outlives them.
struct SoftHost {
  nic::Client* client = nullptr;
  QueueMemory* memory = nullptr;
  std::function<void()> rung;  // makes an embedded NIC take the ring; empty: it is another process
  absl::flat_hash_map<uint32_t, const SharedReceiveQueue*> shared_receive_queues;  // by number
  absl::flat_hash_set<SoftCompletionQueue*> completion_queues;
  int epoll_fd = -1;  // the device's event_fd
};

// A register of the NIC, with its doorbell page.
class SoftRegister final : public mlx5::Doorbell {
 public:
  static absl::StatusOr<std::unique_ptr<SoftRegister>> Make(SoftHost* host);
  // Makes an object for a described one (Device::Describe), as that of each class here does.
  SoftRegister(SoftHost* host, const BatonInheritedCompletionQueue& described);
  ~SoftRegister() override;
  SoftRegister(const SoftRegister&) = delete;
  SoftRegister& operator=(const SoftRegister&) = delete;

  uint32_t number() const { return made_.number; }
  uint8_t* page() const { return page_.begin; }
  int wake_fd() const { return made_.descriptor.get(); }
  void TakeOver() { fifo_.TakeOver(); }

  void Ring(uint64_t bytes) override;
  void Arm(uint64_t bytes) override;
  void ReceivesPosted(uint32_t qp_number, const uint32_t& failed) override;

 private:
  SoftRegister(SoftHost* host, QueueMemory::Block page, nic::Client::Made made);

  SoftHost* const host_;
  const QueueMemory::Block page_;
  const nic::Client::Made made_;
  mlx5::FifoDoorbell fifo_;
};

class SoftCompletionQueue final : public CompletionQueue {
 public:
  static absl::StatusOr<std::unique_ptr<CompletionQueue>> Make(SoftHost* host, uint32_t entries);
  SoftCompletionQueue(SoftHost* host, const BatonInheritedCompletionQueue& described);
  ~SoftCompletionQueue() override;
  SoftCompletionQueue(const SoftCompletionQueue&) = delete;
  SoftCompletionQueue& operator=(const SoftCompletionQueue&) = delete;

  absl::StatusOr<int> Poll(absl::Span<Completion> completions) override;
  mlx5::CompletionQueue* DirectQueue() override;
  void TakeOver() override;
  absl::Status RequestNotification() override;
  void ForgetNotification() override;
  void Describe(BatonInheritedCompletionQueue* described) const override;

  // A forked process calls this after it has made an event_fd of its own.
  void AfterFork();
  // Called when the NIC is lost. Polls fail, and the channel no longer wakes event_fd, which it
  // would do for ever.
  void SetLost();

  uint32_t number() const { return number_; }
  int channel_fd() const { return channel_.descriptor.get(); }
  // The register that rings for queue pairs that complete here. The process that polls this queue
  // also posts to them.
  SoftRegister& reg() const { return *reg_; }

  // `place`: of a queue pair that a former process had added. Without it, the first free one.
  void Add(SoftQueuePair* queue_pair, const mlx5::QueuePairLayout& layout, uint8_t* begin,
           mlx5::SharedReceiveQueue* shared, std::optional<uint32_t> place);
  void Remove(SoftQueuePair* queue_pair);
  absl::Status NoteReset(const SoftQueuePair& queue_pair);
  // Takes all completions and keeps them for Poll, when a queue pair is reset or destroyed. If the
  // NIC is another process, another process may be polling this queue. So then only the opener
  // keeps completions, and only if it polls the queue itself.
  void Keep();
  // Returns the queue pair's place among those that complete here.
  uint16_t PlaceOf(const SoftQueuePair* queue_pair) const;
  // Returns the wr_id of the last kept completion of the queue pair's sends (`receive`: receives).
  std::optional<uint64_t> LastKept(uint32_t qp_number, bool receive) const;
  bool Keeps(uint64_t wr_id) const;

 private:
  struct Parts {
    QueueMemory::Block block;
    mlx5::CompletionQueueLayout layout;
    uint32_t number = 0;
    std::unique_ptr<SoftRegister> reg;
    nic::Client::Made channel;
  };
  SoftCompletionQueue(SoftHost* host, Parts parts);

  bool overrun() const;
  // Returns true if a poll has more to do than to take what is in the queue.
  bool needs_care() const;
  void ClearEvents();
  absl::StatusOr<int> PollWithCare(absl::Span<Completion> completions);
  absl::StatusOr<int> PollAll(absl::Span<Completion> completions);

  SoftHost* const host_;
  const QueueMemory::Block block_;
  const mlx5::CompletionQueueLayout layout_;
  const uint32_t number_;
  const std::unique_ptr<SoftRegister> reg_;
  const nic::Client::Made channel_;
  mlx5::CompletionQueue queue_;
  std::deque<Completion> kept_;
  std::vector<SoftQueuePair*> places_;  // null: free
  bool polls_ = false;                  // this process polls the queue
  bool lost_ = false;                   // the NIC is gone
  bool watched_ = false;                // its channel wakes event_fd
  bool armed_ = false;                  // its next completion makes an event
  bool notified_ = false;               // a completion was polled, and its event not read yet
};

class SoftSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  static absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> Make(SoftHost* host, uint32_t entries,
                                                                  uint32_t max_scatter_gather);
  SoftSharedReceiveQueue(SoftHost* host, const BatonInheritedSharedReceiveQueue& described);
  ~SoftSharedReceiveQueue() override;
  SoftSharedReceiveQueue(const SoftSharedReceiveQueue&) = delete;
  SoftSharedReceiveQueue& operator=(const SoftSharedReceiveQueue&) = delete;

  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status ArmLimit(uint32_t limit) override;
  absl::StatusOr<bool> IsQueued(uint64_t wr_id) const override;
  void Describe(BatonInheritedSharedReceiveQueue* described) const override;

  mlx5::SharedReceiveQueue& queue() { return queue_; }

 private:
  struct Capacity {
    uint32_t entries = 0;
    uint32_t max_scatter_gather = 0;
  };
  SoftSharedReceiveQueue(SoftHost* host, QueueMemory::Block block,
                         const mlx5::SharedReceiveQueueLayout& layout, uint32_t number,
                         Capacity capacity);

  SoftHost* const host_;
  const QueueMemory::Block block_;
  const mlx5::SharedReceiveQueueLayout layout_;
  const Capacity capacity_;
  mlx5::SharedReceiveQueue queue_;
};

class SoftQueuePair final : public QueuePair {
 public:
  static absl::StatusOr<std::unique_ptr<QueuePair>> Make(SoftHost* host,
                                                         const QueuePairOptions& options);
  SoftQueuePair(SoftHost* host, const BatonInheritedQueuePair& described,
                SoftCompletionQueue* completes, SoftSharedReceiveQueue* shared);
  ~SoftQueuePair() override;
  SoftQueuePair(const SoftQueuePair&) = delete;
  SoftQueuePair& operator=(const SoftQueuePair&) = delete;

  uint32_t number() const override { return number_; }
  QueuePairState state() const override { return queue_pair_->state(); }
  uint32_t max_inline_data() const override { return queue_pair_->max_inline_data(); }
  absl::Status PostSend(absl::Span<const SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  mlx5::QueuePair* DirectQueues() override { return queue_pair_.get(); }
  absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const override;
  absl::Status SetError() override { return queue_pair_->SetError(); }
  absl::Status SetReset() override;
  absl::Status SetInit() override { return queue_pair_->SetInit(); }
  bool holds_no_receive() const override {
    return shared_ != nullptr && state() == QueuePairState::kError;
  }
  void ForgetState() override {}  // the state lies in memory that all processes share
  void NoteConnected(bool reads) override { queue_pair_->NoteConnected(reads); }
  void Describe(BatonInheritedQueuePair* described) const override;

  const SoftCompletionQueue* send_queue() const { return send_queue_; }
  const SoftCompletionQueue* receive_queue() const { return receive_queue_; }
  void TakeOver() { queue_pair_->TakeOver(); }

 private:
  SoftQueuePair(SoftHost* host, QueueMemory::Block block, const mlx5::QueuePairLayout& layout,
                const QueuePairOptions& options, uint32_t number,
                std::optional<uint32_t> place = std::nullopt);

  void KeepCompletions();

  SoftHost* const host_;
  const QueueMemory::Block block_;
  const mlx5::QueuePairLayout layout_;
  const uint32_t number_;
  SoftCompletionQueue* const send_queue_;
  SoftCompletionQueue* const receive_queue_;
  const uint32_t max_scatter_gather_;
  mlx5::SharedReceiveQueue* const shared_;  // null: it has receives of its own
  std::unique_ptr<mlx5::QueuePair> queue_pair_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_QUEUES_H_
