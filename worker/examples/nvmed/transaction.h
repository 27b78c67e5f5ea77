// The transaction that is open on the owned shard, and the commands that are pending.
#ifndef WORKER_EXAMPLES_NVMED_TRANSACTION_H_
#define WORKER_EXAMPLES_NVMED_TRANSACTION_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/examples/nvmed/queue.h"
#include "worker/examples/nvmed/resources.h"
#include "worker/examples/nvmed/state.h"
#include "worker/worker.h"

namespace baton::nvmed {

// Stages the work requests of queues, and commits them with the queues and the controllers that
// they changed. Thread-compatible.
class Transaction {
 public:
  // `resources` must outlive this object.
  explicit Transaction(Resources& resources) : resources_(resources) {}

  // The first one on a shard that was adopted.
  void Begin(Shard& shard) { shard_ = &shard; }
  void Forget();
  // Forgets a queue that has ended.
  void Forget(const Queue& queue);
  const Shard* shard() const { return shard_; }  // nullptr: none is owned

  absl::Status Send(Queue& queue, const SendWork& work) {
    if (!queue.sends_by) queue.AwaitSends(resources_.deadlines);
    ++staged_;
    return shard_->Send(*queue.connection, work);
  }
  // Posts the receive of a slot.
  absl::Status Receive(Queue& queue, uint16_t slot);
  // The same for a queue that is dropped if that fails. Returns false then.
  bool PostReceive(Queue& queue, uint16_t slot);
  // Notes that the queue's state is to be saved, and takes the room for it in the transaction.
  // There is room whenever a completion is delivered, and after MakeRoom. Returns false if there is
  // none.
  bool Touch(Queue& queue);
  // Makes room in the transaction for a step of the queue. Commits if there is none. Returns false
  // if there is none even then.
  bool MakeRoom(Queue& queue);

  // Logs why the queue is to be disconnected, and calls End. Its further completions are ignored.
  void Drop(Queue& queue, std::string_view why);
  // EndConnections will disconnect the queue.
  void End(Queue& queue) { ends_.push_back(&queue); }
  // Disconnects the queues that End named, as far as the transaction has room.
  void EndConnections();

  // Receives of the connections that the open transaction accepts.
  uint32_t accepted_receives() const { return accepted_receives_; }
  void AddAcceptedReceives(uint32_t count) { accepted_receives_ += count; }
  void Commit();
  // Returns whether a commit has freed chunks since the last call.
  bool TakeChunksFreed() { return std::exchange(chunks_freed_, false); }

 private:
  Resources& resources_;
  Shard* shard_ = nullptr;
  std::vector<Queue*> touched_;
  std::vector<Queue*> ends_;  // to disconnect
  uint32_t accepted_receives_ = 0;
  uint32_t staged_ = 0;  // work requests
  std::vector<uint8_t> state_bytes_;
  bool chunks_freed_ = false;
};

// The commands between their arrival and their answer that cannot go on yet, or that threads
// execute. Thread-compatible.
class PendingCommands {
 public:
  // A command that waits for room, for a chunk, or for an overlapping one.
  struct Waiting {
    uint32_t connection;
    uint32_t generation;
    uint16_t slot;
    uint32_t order;
  };

  // `transaction` must outlive this object.
  explicit PendingCommands(Transaction& transaction) : transaction_(transaction) {}

  // Takes over a pending command of a queue that was loaded. Call Sort after all of them.
  void Load(Queue& queue, uint16_t slot) {
    ++queue.pending_count;
    waiting_.push_back({queue.connection->index(), queue.connection->generation(), slot,
                        queue.pending[slot].order});
  }
  void Sort() {
    const uint32_t any = waiting_.empty() ? 0 : waiting_.front().order;
    std::sort(waiting_.begin(), waiting_.end(), [any](const Waiting& a, const Waiting& b) {
      return ComesBefore(a.order, b.order, any);
    });
    if (!waiting_.empty()) next_order_ = waiting_.back().order + 1;
  }
  void Forget() {
    waiting_.clear();
    next_order_ = 0;
  }

  // Records that the command is pending, so that a successor would go on with it. Returns its place
  // in the order of arrival.
  uint32_t Set(Queue& queue, uint16_t slot, uint32_t bytes, std::optional<uint32_t> chunk) {
    PendingCommand& pending = queue.pending[slot];
    pending.where = static_cast<uint16_t>(chunk ? PendingCommand::kChunk0 + *chunk
                                                : uint32_t{PendingCommand::kNoChunk});
    pending.bytes = static_cast<uint16_t>(bytes);
    pending.order = resumed_order_ ? *resumed_order_ : next_order_++;
    ++queue.pending_count;
    transaction_.Touch(queue);
    return pending.order;
  }
  void Clear(Queue& queue, uint16_t slot) {
    queue.pending[slot] = PendingCommand();
    --queue.pending_count;
    transaction_.Touch(queue);
  }
  // The command is pending, and waits for the next Resume.
  void Wait(Queue& queue, uint16_t slot, uint32_t bytes, std::optional<uint32_t> chunk) {
    const uint32_t order = Set(queue, slot, bytes, chunk);
    if (resumed_order_) {
      blocked_ = true;  // Resume keeps its place
    } else {
      waiting_.push_back({queue.connection->index(), queue.connection->generation(), slot, order});
    }
  }

  // Calls `go_on` for each waiting command, in the order of arrival. A command for which it returns
  // false keeps its place.
  template <typename GoOn>
  void Resume(GoOn go_on) {
    passed_over_.clear();
    while (!waiting_.empty()) {
      const Waiting next = waiting_.front();
      waiting_.pop_front();
      if (!go_on(next)) passed_over_.push_back(next);
    }
    waiting_.assign(passed_over_.begin(), passed_over_.end());
  }
  // Between them, the command that `go_on` goes on with keeps its order. EndStep returns whether it
  // did not have to wait again.
  void BeginStep(uint32_t order) {
    resumed_order_ = order;
    blocked_ = false;
  }
  bool EndStep() {
    resumed_order_.reset();
    return !blocked_;
  }

  bool any_waiting() const { return !waiting_.empty(); }
  // Returns whether a command that arrives now has to wait for those that wait already.
  bool has_earlier() const { return !resumed_order_ && !waiting_.empty(); }

 private:
  Transaction& transaction_;
  std::deque<Waiting> waiting_;
  std::vector<Waiting> passed_over_;       // by Resume
  std::optional<uint32_t> resumed_order_;  // of the command that Resume goes on with
  bool blocked_ = false;                   // that command has to wait again
  uint32_t next_order_ = 0;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_TRANSACTION_H_
