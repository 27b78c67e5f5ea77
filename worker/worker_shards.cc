#include "worker/worker_shards.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"

namespace baton {
namespace {

constexpr uint64_t kDeliverBatch = 64;

}  // namespace

void WorkerShards::Open(const arena::Arena* arena, uint32_t layout_version, NativeHost* native,
                        const GrantInDoubt* in_doubt, int wake) {
  arena_ = arena;
  layout_version_ = layout_version;
  native_ = native;
  in_doubt_ = in_doubt;
  wake_ = wake;
  connection_slots_ = arena->shape().connections;
  connections_.resize(connection_slots_);
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    shards_.emplace_back(new Shard(this, i));
  }
}

// ---------------------------------------------------------------- delivering

inline void Shard::NoteDelivered(Connection& connection) {
  if (connection.unacknowledged_) return;
  connection.unacknowledged_ = true;
  unacknowledged_.push_back(&connection);
}

// A worker of version 1 knows no void completion: it takes such an entry for one of a connection
// that has ended.
uint32_t WorkerShards::GenerationOfVoid(const arena::CompletionEntry& entry) const {
  return layout_version_ >= 2 ? arena::GenerationOf(entry) : entry.generation;
}

// `head`: the entry's kind, status, opcode and flags.
[[gnu::always_inline]] inline Completion WorkerShards::Translate(
    const arena::CompletionEntry& entry, uint32_t head, Connection* connection) {
  constexpr uint32_t kKindStatusOpcode = arena::FourBytes(0xff, 0xff, 0xff, 0);
  static_assert(arena::kCompletionHasImmediate == 1 && arena::kCompletionHasInvalidate == 2);
  const uint32_t flags = head >> 24;
  const uint32_t kinds = (head & kKindStatusOpcode) | (flags & 1) << 24;
  Completion completion;
  static_assert(offsetof(Completion, status) == 1 && offsetof(Completion, opcode) == 2 &&
                offsetof(Completion, has_immediate) == 3 &&
                offsetof(Completion, has_invalidate) == 4 && offsetof(Completion, byte_len) == 8 &&
                offsetof(Completion, immediate) == 12 && offsetof(Completion, sequence) == 16 &&
                offsetof(Completion, tag) == 24);
  arena::StorePair<offsetof(Completion, kind)>(completion, arena::TwoFields(kinds, flags >> 1 & 1),
                                               arena::TwoFields(entry.byte_len, entry.immediate));
  arena::StorePair<offsetof(Completion, sequence)>(completion, entry.sequence, entry.tag);
  completion.connection = connection;
  return completion;
}

[[gnu::always_inline]] inline void WorkerShards::Hand(Shard& shard,
                                                      const arena::CompletionEntry& entry,
                                                      uint32_t head, Connection& connection,
                                                      bool shared_receive) {
  const auto kind = arena::CompletionKind(head & 0xff);
  if (kind == arena::CompletionKind::kSend) connection.send_completed_ = entry.sequence + 1;
  if (kind == arena::CompletionKind::kReceive && !shared_receive) {
    connection.receive_completed_ = entry.sequence + 1;
  }
  shard.NoteDelivered(connection);
  shard.handed_ = shard.delivered_;
  // Stored before the handler runs: if the worker dies in it, it died on this completion.
  TellHandling(shard, /*in_handler=*/true);
  BATON_CRASH_POINT("deliver-before-handler");
  service_->OnCompletion(shard, Translate(entry, head, &connection));
  BATON_CRASH_POINT("deliver-after-handler");
}

int WorkerShards::Deliver(Shard& shard) {
  const uint64_t tail = arena::LoadAcquire(shard.record_->completion_tail);
  if (tail == shard.delivered_) return 0;
  BATON_CRASH_POINT("deliver-begin");
  const uint64_t end = std::min(tail, shard.delivered_ + kDeliverBatch);
  idle_looks_ = 0;
  // The next completion's transaction has nothing that was staged outside of completions.
  const bool commits = commit_mode_ != CommitMode::kManual;
  if (commits && !shard.NothingStaged()) [[unlikely]]
    (void)shard.Commit();
  int count = 0;
  // A completion may need an entry for its connection, one for a decision, one for shared receives
  // and one for the heap, and with CommitMode::kAfterEachCompletion no two completions share one.
  // If the log lacks that room, the driver is far behind, and delivery waits for it. If the open
  // transaction lacks room for requests or in the heap, delivery waits for its commit.
  const bool shares_receives = shard.receive_depth_ == 0;
  const uint32_t needed = shard.entries_per_completion_;
  const bool commits_each = commit_mode_ == CommitMode::kAfterEachCompletion;
  while (shard.delivered_ < end && Owns(shard) && shard.HasEntryRoom(needed)) {
    ++count;
    DeliverNext(shard, shares_receives);
    if (commits_each) (void)shard.Commit();
  }
  if (!Owns(shard)) return count;
  TellHandling(shard, /*in_handler=*/false);
  if ((commits && !shard.NothingStaged()) || shard.OnlySkipped()) (void)shard.Commit();
  return count;
}

[[gnu::always_inline]] inline void WorkerShards::DeliverNext(Shard& shard, bool shares_receives) {
  const arena::CompletionEntry& entry = shard.log_[shard.delivered_ & shard.log_mask_];
  // Nobody writes to an entry that was published.
  const uint32_t head = arena::LoadFourBytes(entry.kind);
  const auto kind = arena::CompletionKind(head & 0xff);
  const bool is_void = (head >> 24 & arena::kCompletionVoid) != 0;
  const uint32_t generation = is_void ? GenerationOfVoid(entry) : entry.generation;
  Connection* const connection = Resolve(shard, entry.connection, generation);
  ++shard.delivered_;
  // A connection that has ended has nothing under way.
  if (kind != arena::CompletionKind::kReceive) awaits_device_ = false;
  const bool shared_receive = shares_receives && arena::IsSharedReceive(entry.wr_id);
  if (shared_receive && !is_void) {
    --shard.shared_outstanding_;
    shard.shared_unacknowledged_.push_back(
        static_cast<uint16_t>(arena::SharedReceiveSlot(entry.wr_id)));
  }
  // The former owner committed a transaction that acknowledged the connection's end.
  if (connection == nullptr) return;
  if (!is_void) [[likely]]
    Hand(shard, entry, head, *connection, shared_receive);
  if (kind == arena::CompletionKind::kDisconnected || kind == arena::CompletionKind::kConnectFailed)
      [[unlikely]] {
    connection->known_epoch_ = 0;
    connection->ended_epoch_ = shard.epoch_;
  }
}

// Returns a connection that this worker has not loaded in this epoch, or null if it has ended.
Connection* WorkerShards::Find(Shard& shard, uint32_t index, uint32_t generation) {
  Connection& connection = connections_[index];
  if (connection.shard_ == &shard && connection.generation_ == generation &&
      connection.ended_epoch_ == shard.epoch_) {
    return nullptr;
  }
  const arena::ConnectionRecord& record = arena_->connection(index);
  if (record.generation != generation || arena::LoadAcquire(record.shard) != shard.index_ ||
      arena::LoadAcquire(record.arriving) != 0 ||
      arena::LoadAcquire(record.state) == static_cast<uint32_t>(arena::ConnectionState::kFree)) {
    return nullptr;
  }
  BATON_CRASH_POINT("load-connection");
  Load(connection, shard, index);
  return &connection;
}

void WorkerShards::LoadCursors(const arena::ConnectionRecord& record, Connection* connection) {
  connection->send_staged_ = connection->send_committed_ = record.send.committed;
  connection->send_acknowledged_ = connection->send_completed_ = record.send.acknowledged;
  connection->receive_staged_ = connection->receive_committed_ = record.receive.committed;
  connection->receive_acknowledged_ = connection->receive_completed_ = record.receive.acknowledged;
}

// REQUIRES: this worker has committed nothing to the connection in this epoch. So its cursors stand
// still, except for completions that were not delivered yet.
void WorkerShards::Load(Connection& connection, Shard& shard, uint32_t index) {
  const arena::ConnectionRecord& record = arena_->connection(index);
  const bool unacknowledged = connection.unacknowledged_;
  connection = Connection{};
  connection.unacknowledged_ = unacknowledged;
  connection.shard_ = &shard;
  connection.index_ = index;
  connection.generation_ = record.generation;
  LoadCursors(record, &connection);
  connection.state_slot_ = record.state_slot;
  connection.state_length_ = record.state_length;
  connection.state_version_ = record.state_version;
  connection.known_epoch_ = shard.epoch_;
  connection.send_log_ = &arena_->send_request(index, 0);
  connection.receive_log_ = &arena_->receive_request(index, 0);
}

// ---------------------------------------------------------------- the driver

// The driver is in this process, so nobody needs to be woken.
void WorkerShards::TellNativeHost(const Shard& shard, bool released) {
  if (released) return native_->Release(shard.index_, shard.epoch_);
  native_->Apply(shard.index_);
}

void WorkerShards::RecoverAndPoll() {
  native_->Attend();
  for (const auto& shard : shards_) {
    if (Owns(*shard)) native_->Poll(shard->index_);
  }
}

void WorkerShards::RequestNotifications() {
  for (const auto& shard : shards_) {
    if (Owns(*shard)) native_->RequestNotification(shard->index_);
  }
}

void WorkerShards::WakeDriver() {
  // Orders the tail before the look at the flag; Engine::Sleep has the other half.
  arena::FullFence();
  if (arena::LoadRelaxed(arena_->header().driver_sleeping) != 0) {
    (void)send(wake_, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

bool WorkerShards::AwaitsMove(const Shard& shard) const {
  return std::any_of(shards_.begin(), shards_.end(), [&](const auto& other) {
    return other.get() != &shard && Owns(*other) && other->MovesInto(shard);
  });
}

}  // namespace baton
