#include "lib/driver/commit_applier.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/driver/connection_state.h"

namespace baton::driver {

using arena::CommitEntry;
using arena::CommitKind;
using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionRecord;

namespace {

constexpr uint32_t kDecisions =
    KindBit(CommitKind::kAccept) | KindBit(CommitKind::kReject) | KindBit(CommitKind::kDisconnect);

}  // namespace

CommitApplier::CommitApplier(DriverState& state, ConnectionTeardown& teardown,
                             RequestPoster& poster, SharedReceives& shared, ConnectionSetup& setup)
    : state_(state),
      arena_(state.arena),
      teardown_(teardown),
      poster_(poster),
      shared_(shared),
      setup_(setup),
      connection_slots_(state.connection_slots),
      records_(state.records),
      reader_(*state.arena, state.objects->buffers->lkey()) {}

uint64_t CommitApplier::PendingEntries(uint32_t shard) const {
  const arena::ShardRecord& record = arena_->shard(shard);
  const uint64_t epoch = arena::OwnershipEpoch(record.owner.ownership);
  const uint64_t tail = arena::LoadAcquire(arena_->bank(shard, epoch).tail);
  if (!arena::CursorIsOf(tail, epoch)) return 0;  // a late store of another epoch
  if (!arena::CursorIsOf(record.commit_head, epoch)) return 0;
  const uint64_t pending = arena::CursorIndex(tail) - arena::CursorIndex(record.commit_head);
  return pending <= arena::kCommitLogEntries ? pending : 1;
}

std::vector<uint32_t> CommitApplier::AcceptTargets(uint32_t shard) const {
  std::vector<uint32_t> targets;
  const arena::ShardRecord& record = arena_->shard(shard);
  // Nothing that is published behind a release counts.
  if (record.released_epoch == arena::OwnershipEpoch(record.owner.ownership)) return targets;
  const uint64_t head = record.commit_head;
  const uint64_t pending = PendingEntries(shard);
  for (uint64_t i = 0; i < pending; ++i) {
    const arena::CommitEntry entry = arena::CopyOnce(
        arena_->commit_entry(shard, arena::OwnershipEpoch(arena_->shard(shard).owner.ownership),
                             arena::CursorIndex(head) + i));
    const bool accepts = arena::CommitKind(entry.kind) == arena::CommitKind::kAccept;
    if (accepts && entry.target_shard != shard && entry.target_shard < state_.shards.size()) {
      targets.push_back(entry.target_shard);
    }
  }
  return targets;
}

CommitOutcome CommitApplier::ApplyNext(uint32_t shard, absl::Status* error) {
  arena::ShardRecord& record = arena_->shard(shard);
  const uint64_t epoch = arena::OwnershipEpoch(record.owner.ownership);
  // A driver that died after applying the release may not have returned kReleased.
  if (record.released_epoch == epoch && epoch != 0) return CommitOutcome::kReleased;
  // A driver made this epoch's cut and died before it began the next epoch.
  if (!arena::CursorIsOf(record.commit_head, epoch)) return CommitOutcome::kIdle;
  const uint64_t head = arena::CursorIndex(record.commit_head);
  const uint64_t tail_word = arena::LoadAcquire(arena_->bank(shard, epoch).tail);
  if (!arena::CursorIsOf(tail_word, epoch)) return CommitOutcome::kIdle;
  const uint64_t tail = arena::CursorIndex(tail_word);
  if (tail == head) return CommitOutcome::kIdle;
  if (tail - head > arena::kCommitLogEntries) {
    *error = absl::InvalidArgumentError(absl::StrCat(
        "tail: ", tail, " with ", head, " applied and ", arena::kCommitLogEntries, " entries"));
    return CommitOutcome::kInvalid;
  }
  const bool resumed = record.apply_begun == record.commit_head;
  ShardCounters& counters = state_.shards[shard].counters;
  if (tail - head == 1 && posts_directly_ && !resumed &&
      ApplyPlain(shard, record, arena_->commit_entry(shard, epoch, head), counters)) [[likely]] {
    EndTransaction(record, counters, arena::PackCursor(epoch, tail));
    return CommitOutcome::kApplied;
  }
  if (record.commit_head == state_.shards[shard].unreadable && !resumed) [[unlikely]] {
    arena::StoreRelaxed(record.at, 0u);
    *error = absl::InvalidArgumentError("each driver that read the transaction died");
    return CommitOutcome::kInvalid;
  }
  arena::StoreRelaxed(record.at, arena::kAtTransaction);
  BATON_CRASH_POINT("driver-reads-transaction");
  *error = reader_.Read(shard, epoch, head, tail, resumed,
                        [this](uint32_t connection) { return DirectQueuesOf(connection); });
  if (!error->ok()) {
    arena::StoreRelaxed(record.at, 0u);
    return CommitOutcome::kInvalid;
  }
  const Transaction& transaction = reader_.transaction();
  arena::StoreRelaxed(record.apply_begun, record.commit_head);
  arena::OrderForCrash();
  BATON_CRASH_POINT("driver-apply-begun");
  arena::StoreRelaxed(record.at, 0u);
  Apply(shard, transaction);
  BATON_CRASH_POINT("driver-applied");
  const bool released = CommitKind(transaction.parts.back().entry.kind) == CommitKind::kRelease;
  if (released) arena::StoreRelaxed(record.released_epoch, epoch);
  counters.bytes_sent += transaction.send_bytes;
  requests_applied_ = transaction.requests;
  EndTransaction(record, counters, arena::PackCursor(epoch, head + transaction.entries));
  return released ? CommitOutcome::kReleased : CommitOutcome::kApplied;
}

[[gnu::always_inline]] inline void CommitApplier::EndTransaction(arena::ShardRecord& record,
                                                                 ShardCounters& counters,
                                                                 uint64_t commit_head) {
  arena::StoreRelaxed(record.bytes_sent, counters.bytes_sent);
  ++counters.transactions;
  arena::StoreRelaxed(record.transactions, counters.transactions);
  arena::StoreRelease(record.commit_head, commit_head);
  BATON_CRASH_POINT("driver-folded");
}

// Most transactions have one entry, which posts requests of one connection and may acknowledge.
// Applies such a transaction. Returns false, and has applied nothing, if it is another or invalid:
// TransactionReader::Read() then tells which.
[[gnu::always_inline]] inline bool CommitApplier::ApplyPlain(uint32_t shard,
                                                             arena::ShardRecord& record,
                                                             const CommitEntry& shared,
                                                             ShardCounters& counters) {
  TransactionPart part;
  arena::CopyOnce(shared, &part.entry);
  const CommitEntry& entry = part.entry;
  if (CommitKind(entry.kind) != CommitKind::kConnection ||
      (entry.flags & ~arena::kCommitAcknowledges) != arena::kCommitLast ||
      entry.connection >= connection_slots_) {
    return false;
  }
  arena::StoreRelaxed(record.at, arena::AtConnection(entry.connection));
  part.direct = DirectQueuesOf(entry.connection);
  uint64_t requests = 0, bytes = 0;
  if (part.direct == nullptr || !reader_.ReadPlain(shard, &part, &requests, &bytes)) return false;
  arena::StoreRelaxed(record.apply_begun, record.commit_head);
  arena::OrderForCrash();
  BATON_CRASH_POINT("driver-apply-begun");
  ApplyConnection(part);
  BATON_CRASH_POINT("driver-part-applied");
  arena::StoreRelaxed(record.at, 0u);
  if (arena::Acknowledges(entry)) ApplyAcknowledge(shard, entry);
  BATON_CRASH_POINT("driver-applied");
  counters.bytes_sent += bytes;
  requests_applied_ = requests;
  return true;
}

// Order within a transaction: queue pairs of accepted connections are created before their receives
// are posted, receives are posted before sends, and connections end before an acknowledgement can
// free their slots.
[[gnu::always_inline]] inline void CommitApplier::Apply(uint32_t shard,
                                                        const Transaction& transaction) {
  constexpr uint32_t kFirst = KindBit(CommitKind::kAccept) | KindBit(CommitKind::kSharedReceives);
  if (transaction.Has(kFirst)) PrepareDecisions(shard, transaction);
  for (const TransactionPart& part : transaction.parts) {
    if (CommitKind(part.entry.kind) == CommitKind::kConnection) {
      state_.DoAt(shard, arena::AtConnection(part.entry.connection),
                  [&] { ApplyConnection(part); });
    }
    if (CommitKind(part.entry.kind) == CommitKind::kShardState) ApplyShardState(shard, part.entry);
    if (CommitKind(part.entry.kind) == CommitKind::kHeap) ApplyHeap(shard, part.entry);
    BATON_CRASH_POINT("driver-part-applied");
  }
  if (transaction.Has(kDecisions)) Decide(shard, transaction);
  for (const TransactionPart& part : transaction.parts) {
    if (arena::Acknowledges(part.entry)) ApplyAcknowledge(shard, part.entry);
  }
}

void CommitApplier::PrepareDecisions(uint32_t shard, const Transaction& transaction) {
  for (const TransactionPart& part : transaction.parts) {
    if (CommitKind(part.entry.kind) == CommitKind::kAccept) {
      state_.DoAt(shard, arena::AtConnection(part.entry.connection),
                  [&] { setup_.PrepareAccept(shard, part.entry); });
    }
    if (CommitKind(part.entry.kind) == CommitKind::kSharedReceives) {
      shared_.Post(shard, transaction, part);
    }
  }
}

void CommitApplier::Decide(uint32_t shard, const Transaction& transaction) {
  for (const TransactionPart& part : transaction.parts) {
    if ((KindBit(CommitKind(part.entry.kind)) & kDecisions) == 0) continue;
    state_.SetAt(shard, arena::AtConnection(part.entry.connection));
    switch (CommitKind(part.entry.kind)) {
      case CommitKind::kAccept:
        setup_.FinishAccept(part.entry);
        break;
      case CommitKind::kReject:
        setup_.Reject(part.entry);
        break;
      case CommitKind::kDisconnect:
        teardown_.StartDraining(part.entry.connection, verbs::CompletionStatus::kSuccess,
                                "disconnected by the worker");
        break;
      default:
        break;
    }
    BATON_CRASH_POINT("driver-part-decided");
    state_.SetAt(shard, 0);
  }
}

void CommitApplier::ApplyShardState(uint32_t shard, const CommitEntry& entry) {
  arena::ShardRecord& record = arena_->shard(shard);
  record.state_length = entry.state_length;
  record.state_version = entry.state_version;
  BATON_CRASH_POINT("driver-shard-state-half");
  record.state_slot = entry.state_slot;
}

void CommitApplier::ApplyHeap(uint32_t shard, const CommitEntry& entry) {
  const auto heap = std::bit_cast<arena::HeapEntry>(entry);
  for (uint32_t i = 0; i < heap.count; ++i) {
    const arena::HeapBlock block = arena::BlockOf(heap.changes[i]);
    arena::HeapBlock& record = arena_->heap(shard)[heap.changes[i].page];
    arena::StoreRelaxed(record.pages, block.pages);
    arena::StoreRelaxed(record.units, block.units);
    BATON_CRASH_POINT("driver-heap-half");
    arena::StoreRelaxed(record.kept, block.kept);
  }
}

[[gnu::always_inline]] inline void CommitApplier::ApplyConnection(const TransactionPart& part) {
  const CommitEntry& entry = part.entry;
  ConnectionRecord& connection = records_[entry.connection];
  if (entry.state_slot != arena::kKeepState) {
    connection.state_length = entry.state_length;
    connection.state_version = entry.state_version;
    BATON_CRASH_POINT("driver-state-half");
    connection.state_slot = entry.state_slot;
  }
  posts_directly_ = part.direct != nullptr;
  posts_directly_ ? PostWritten(part) : PostListed(part);
}

void CommitApplier::PostListed(const TransactionPart& part) {
  const CommitEntry& entry = part.entry;
  const ConnectionRecord& connection = records_[entry.connection];
  const Transaction& all = reader_.transaction();
  const auto receives =
      all.receives.subspan(part.first_receive, entry.receive_end - connection.receive.committed);
  const auto sends = all.sends.subspan(part.first_send, entry.send_end - connection.send.committed);
  poster_.PostCommitted(entry.connection, receives);
  poster_.PostCommitted(entry.connection, sends);
}

// Returns null if requests have to wait or the connection's queues cannot be written directly.
[[gnu::always_inline]] inline verbs::mlx5::QueuePair* CommitApplier::DirectQueuesOf(
    uint32_t index) const {
  const ConnectionRecord& connection = records_[index];
  if (!state_.CanPost(index, false) || state_.slots[index].receives_held ||
      connection.send.posted != connection.send.committed ||
      connection.receive.posted != connection.receive.committed) {
    return nullptr;
  }
  verbs::QueuePair* const queue_pair = state_.device_of(index).queue_pair.get();
  verbs::mlx5::QueuePair* const direct =
      queue_pair == nullptr ? nullptr : queue_pair->DirectQueues();
  return direct != nullptr && direct->may_send() ? direct : nullptr;
}

// If an earlier entry has ended the connection, its requests are committed and never posted.
[[gnu::always_inline]] inline void CommitApplier::PostWritten(const TransactionPart& part) {
  ConnectionRecord& connection = records_[part.entry.connection];
  const bool live = IsLive(connection);
  ShardCounters& counters = state_.shards[state_.ShardOf(connection)].counters;
  if (const uint64_t count = part.entry.receive_end - connection.receive.committed; count != 0) {
    connection.receive.committed += count;
    BATON_CRASH_POINT("driver-cursor-folded");
    if (live) {
      counters.receives_committed += count;
      PostBatch<true>(connection, count, part.direct, part.receives_written, counters);
    }
  }
  if (const uint64_t count = part.entry.send_end - connection.send.committed; count != 0) {
    connection.send.committed += count;
    BATON_CRASH_POINT("driver-cursor-folded");
    if (live) {
      counters.sends_committed += count;
      PostBatch<false>(connection, count, part.direct, part.sends_written, counters);
    }
  }
}

template <bool kReceive, typename Batch>
[[gnu::always_inline]] inline void CommitApplier::PostBatch(ConnectionRecord& connection,
                                                            uint64_t count,
                                                            verbs::mlx5::QueuePair* queue_pair,
                                                            const Batch& batch,
                                                            ShardCounters& counters) {
  arena::QueueCursors& cursors = kReceive ? connection.receive : connection.send;
  const uint64_t end = cursors.posted + count;
  arena::StoreRelaxed(kReceive ? connection.receive_attempted : connection.send_attempted,
                      static_cast<uint32_t>(end));
  arena::OrderForCrash();
  BATON_CRASH_POINT("driver-before-post");
  queue_pair->Queue(batch);
  BATON_CRASH_POINT("driver-after-post");
  arena::StoreRelease(cursors.posted, end);
  BATON_CRASH_POINT("driver-posted");
  (kReceive ? counters.receives_posted : counters.sends_posted) += count;
}

void CommitApplier::ApplyAcknowledge(uint32_t shard, const CommitEntry& entry) {
  arena::ShardRecord& shard_record = arena_->shard(shard);
  const uint64_t end = entry.acknowledged;
  // Acknowledges at most as many as the log holds: another process may have overwritten
  // `acknowledged` since the entry was checked.
  const uint64_t most = std::min<uint64_t>(end, arena_->shape().completion_log_entries);
  uint64_t next = std::max(shard_record.acknowledged, end - most);
  while (next < end) next = AcknowledgeRun(shard, next, end);
  shard_record.acknowledged = std::max(shard_record.acknowledged, end);
}

// Acknowledges the completion at `begin` and those behind it, before `end`, that are of the same
// queue. One store of the last one's sequence number does it. Returns the index of the next
// completion.
[[gnu::always_inline]] inline uint64_t CommitApplier::AcknowledgeRun(uint32_t shard, uint64_t begin,
                                                                     uint64_t end) {
  const CompletionEntry* const log = &arena_->completion(shard, 0);
  const uint64_t mask = arena_->shape().completion_log_entries - 1;
  const CompletionEntry& first = log[begin & mask];
  constexpr uint32_t kKindAndVoid = arena::FourBytes(0xff, 0, 0, arena::kCompletionVoid);
  const uint32_t what = arena::LoadFourBytes(first.kind) & kKindAndVoid;
  const bool send = what == static_cast<uint32_t>(CompletionKind::kSend);
  const bool receive =
      what == static_cast<uint32_t>(CompletionKind::kReceive) && !state_.SharesReceives();
  const uint32_t index = arena::LoadRelaxed(first.connection);
  if (!(send || receive) || index >= connection_slots_) [[unlikely]] {
    AcknowledgeOther(shard, first);
    BATON_CRASH_POINT("driver-acknowledging");
    return begin + 1;
  }
  const uint32_t generation = arena::LoadRelaxed(first.generation);
  const CompletionEntry* last = &first;
  uint64_t next = begin + 1;
  for (; next < end; ++next) {
    const CompletionEntry& other = log[next & mask];
    if ((arena::LoadFourBytes(other.kind) & kKindAndVoid) != what || other.connection != index ||
        other.generation != generation) {
      break;
    }
    last = &other;
  }
  if (ConnectionRecord& connection = records_[index]; connection.generation == generation) {
    (send ? connection.send : connection.receive).acknowledged = last->sequence + 1;
  }
  BATON_CRASH_POINT("driver-acknowledging");
  return next;
}

// A void send or receive acknowledges nothing: its buffers are free when the connection has ended.
void CommitApplier::AcknowledgeOther(uint32_t shard, const CompletionEntry& completion) {
  if (state_.SharesReceives() && arena::IsSharedReceive(completion.wr_id)) {
    return shared_.Return(shard, completion);
  }
  const uint32_t index = completion.connection;
  if (index >= connection_slots_ || records_[index].generation != arena::GenerationOf(completion)) {
    return;
  }
  switch (CompletionKind(completion.kind)) {
    case CompletionKind::kDisconnected:
    case CompletionKind::kConnectFailed:
      return state_.DoAt(shard, arena::AtConnection(index),
                         [&] { teardown_.AcknowledgeEnd(index); });
    default:
      return;
  }
}

}  // namespace baton::driver
