// Inside the worker library: the shards of a service and their connections, as one worker has them.
#ifndef WORKER_WORKER_SHARDS_H_
#define WORKER_WORKER_SHARDS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "worker/grant_in_doubt.h"
#include "worker/native_host.h"
#include "worker/worker.h"

namespace baton {

inline bool Shard::HasEntryRoom(uint32_t needed) const {
  return entries_left_ >= needed || EntryRoom() >= needed;
}

// Delivers the completions of the shards that the worker owns, and tells their driver that
// something was committed. OwnershipChanges makes the worker their owner.
//
// Thread-compatible: the worker's thread.
class WorkerShards {
 public:
  // `worker` and `service` must outlive this object.
  WorkerShards(Worker* worker, Service* service, CommitMode commit_mode)
      : worker_(worker), service_(service), commit_mode_(commit_mode) {}
  WorkerShards(const WorkerShards&) = delete;
  WorkerShards& operator=(const WorkerShards&) = delete;

  // Call it once, before all others. `arena`, `native`, `in_doubt` and `wake`, the socket to the
  // engine, must outlive this object. `native` is null if the driver is `baton-driver`, which has
  // to be woken.
  void Open(const arena::Arena* arena, uint32_t layout_version, NativeHost* native,
            const GrantInDoubt* in_doubt, int wake);

  Worker& worker() const { return *worker_; }
  const arena::Arena& arena() const { return *arena_; }
  // Returns the newest layout that library and arena know.
  uint32_t layout_version() const { return layout_version_; }
  NativeHost* native() const { return native_; }
  const GrantInDoubt& in_doubt() const { return *in_doubt_; }
  CommitMode commit_mode() const { return commit_mode_; }

  // Returns the shards of the service, by their indices.
  const std::vector<std::unique_ptr<Shard>>& all() const { return shards_; }
  bool Owns(const Shard& shard) const { return shard.epoch_ != 0; }
  bool HasCompletions() const {
    return std::any_of(shards_.begin(), shards_.end(), [&](const auto& shard) {
      return Owns(*shard) &&
             arena::LoadAcquire(shard->record_->completion_tail) != shard->delivered_;
    });
  }
  // Returns the connection in slot `index`, or null if the slot has another one or none. Loads it
  // from the driver's record if this worker does not know it yet.
  Connection* Resolve(Shard& shard, uint32_t index, uint32_t generation) {
    if (index >= connection_slots_) return nullptr;
    Connection* const known = Known(shard, index, generation);
    return known != nullptr ? known : Find(shard, index, generation);
  }
  // The same, but loads nothing: null, too, if this worker does not know the connection yet, or not
  // any more. REQUIRES: index < Capacity::connections.
  Connection* Known(const Shard& shard, uint32_t index, uint32_t generation) {
    Connection& connection = connections_[index];
    const bool known = connection.shard_ == &shard && connection.generation_ == generation &&
                       connection.known_epoch_ == shard.epoch_;
    return known ? &connection : nullptr;
  }
  // Returns whether this worker has accepted the connection into another shard in this epoch. The
  // record may not say so yet. REQUIRES: index < Capacity::connections.
  bool HasMoved(const Shard& shard, uint32_t index, uint32_t generation) const {
    const Connection& connection = connections_[index];
    return connection.shard_ == &shard && connection.generation_ == generation &&
           connection.moved_epoch_ == shard.epoch_;
  }
  // Returns such a connection while the record may lack what this worker has committed to it;
  // otherwise null. REQUIRES: index < Capacity::connections.
  const Connection* Moving(const Shard& shard, uint32_t index,
                           const arena::ConnectionRecord& record) const {
    const bool moves = HasMoved(shard, index, record.generation) &&
                       (arena::LoadAcquire(record.shard) == shard.index_ ||
                        arena::LoadAcquire(record.arriving) != 0);
    return moves ? &connections_[index] : nullptr;
  }

  static void LoadCursors(const arena::ConnectionRecord& record, Connection* connection);

  // Returns how many completions it has delivered. REQUIRES: Owns(shard).
  int Deliver(Shard& shard);
  // Counts a look that found nothing.
  //
  // A transaction that only acknowledges takes as long as one that posts, and may delay the next
  // message. So acknowledgements alone wait until the worker is idle.
  void NoteIdleLook() {
    if (++idle_looks_ >= kLooksBeforeAcknowledging) [[unlikely]]
      AcknowledgeDelivered();
  }
  void AcknowledgeDelivered();
  // Commits what was staged outside of completions, or of another shard's. Returns false if some of
  // it waits for room. Does nothing with CommitMode::kManual.
  bool CommitStaged() {
    bool committed = true;
    if (commit_mode_ == CommitMode::kManual) return committed;
    for (const auto& shard : shards_) {
      if (!shard->NothingStaged() && Owns(*shard)) committed &= shard->Commit().ok();
    }
    return committed;
  }
  // Returns true if an open transaction of another shard accepts a connection into this one.
  bool AwaitsMove(const Shard& shard) const;
  // Stores hints for the time after this worker's death: whether it is in a handler now, and of
  // which completion. REQUIRES: Owns(shard).
  [[gnu::always_inline]] inline void TellHandling(const Shard& shard, bool in_handler) {
    arena::BankHeader& bank = *shard.bank_;
    const bool tells = layout_version_ >= 2;
    if (tells) arena::StoreRelaxed(bank.handling, in_handler ? shard.delivered_ : 0);
    if (tells || !in_handler) arena::StoreRelaxed(bank.read_cursor, shard.delivered_);
  }

  // Returns whether sends were committed, and since then none has completed, no connection has
  // ended and no shard has left.
  bool awaits_device() const { return awaits_device_; }
  void NoteSendsCommitted() { awaits_device_ = true; }
  // A shard has left: a successor gets the completions of its sends.
  void ForgetSends() { awaits_device_ = false; }

  // Called after each transaction was published. `released`: it gives the shard away.
  void TellDriver(const Shard& shard, bool released) {
    if (native_) return TellNativeHost(shard, released);
    WakeDriver();
  }
  // Does the driver's work that is due in a native worker: it goes on with the recovery of claimed
  // shards, and moves completions to the logs. REQUIRES: native().
  void RecoverAndPoll();
  // Makes native()->event_fd() readable at the next completion of any shard. REQUIRES: native().
  void RequestNotifications();

 private:
  // Looks in a row that find nothing. They take about as long as an answer of a peer near by.
  static constexpr uint32_t kLooksBeforeAcknowledging = 16;

  void DeliverNext(Shard& shard, bool shares_receives);
  void Hand(Shard& shard, const arena::CompletionEntry& entry, uint32_t head,
            Connection& connection, bool shared_receive);
  static Completion Translate(const arena::CompletionEntry& entry, uint32_t head,
                              Connection* connection);
  uint32_t GenerationOfVoid(const arena::CompletionEntry& entry) const;
  Connection* Find(Shard& shard, uint32_t index, uint32_t generation);
  void Load(Connection& connection, Shard& shard, uint32_t index);
  void TellNativeHost(const Shard& shard, bool released);
  void WakeDriver();

  Worker* const worker_;
  Service* const service_;
  const CommitMode commit_mode_;
  const arena::Arena* arena_ = nullptr;
  uint32_t layout_version_ = arena::kLayoutVersion;
  uint32_t connection_slots_ = 0;
  NativeHost* native_ = nullptr;
  const GrantInDoubt* in_doubt_ = nullptr;
  int wake_ = -1;
  uint32_t idle_looks_ = 0;  // looks in a row that found nothing
  bool awaits_device_ = false;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<Connection> connections_;
};

inline void WorkerShards::AcknowledgeDelivered() {
  idle_looks_ = 0;
  if (commit_mode_ == CommitMode::kManual) return;
  // If the log has no room now, a later look acknowledges.
  for (const auto& shard : shards_) {
    const bool has_some = shard->delivered_ != shard->acknowledged_ || !shard->NothingStaged();
    if (has_some && Owns(*shard)) (void)shard->Commit();
  }
}

}  // namespace baton

#endif  // WORKER_WORKER_SHARDS_H_
