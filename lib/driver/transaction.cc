#include "lib/driver/transaction.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"

namespace baton::driver {
namespace {

using arena::CommitEntry;
using arena::CommitKind;
using arena::ConnectionRecord;
using arena::QueueCursors;

// Kept out of the path of valid transactions.
template <typename... Args>
[[gnu::cold, gnu::noinline]] absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

bool NamesConnection(CommitKind kind) {
  return kind == CommitKind::kConnection || kind == CommitKind::kAccept ||
         kind == CommitKind::kReject || kind == CommitKind::kDisconnect;
}

// Returns true if the log and the queue have room for the requests before `end`, and `end` takes
// back none that was committed.
[[gnu::always_inline]] inline bool MayEndAt(uint64_t end, const QueueCursors& cursors,
                                            uint32_t depth) {
  return end >= cursors.committed && end - cursors.acknowledged <= 2 * uint64_t{depth} &&
         end - cursors.completed <= depth;
}

bool MayAcknowledge(uint64_t acknowledged, const arena::ShardRecord& shard) {
  return acknowledged >= shard.acknowledged && acknowledged <= shard.completion_tail;
}

[[gnu::always_inline]] inline absl::Status CheckEnd(const char* field, uint64_t end,
                                                    const QueueCursors& cursors, uint32_t depth) {
  if (MayEndAt(end, cursors, depth)) [[likely]]
    return absl::OkStatus();
  if (end < cursors.committed) {
    return Invalid(field, ": ", end, " is before ", cursors.committed, ", which was committed");
  }
  if (end - cursors.acknowledged > 2 * uint64_t{depth}) {
    return Invalid(field, ": ", end, " overtakes the log, ", cursors.acknowledged,
                   " are acknowledged and it holds ", 2 * uint64_t{depth});
  }
  return Invalid(field, ": ", end, " exceeds the queue, ", cursors.completed,
                 " are completed and it holds ", depth);
}

absl::Status TooManyRequests() {
  return Invalid("send_end, receive_end, slots: more than ", kMaxTransactionRequests,
                 " work requests in one transaction");
}

}  // namespace

TransactionReader::TransactionReader(const arena::Arena& arena, uint32_t lkey)
    : arena_(arena),
      parts_(arena::kMaxTransactionEntries),
      requests_(arena, lkey, kMaxTransactionRequests),
      seen_(arena.shape().connections, 0),
      seen_shared_(arena::SharedReceiveSlots(arena.shape()), 0) {}

absl::Status TransactionReader::Read(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail,
                                     bool resumed, DirectQueuesOf direct) {
  ++reads_;
  resumed_ = resumed;
  shared_ = 0;
  request_count_ = 0;
  kinds_ = 0;
  requests_.Clear(shard);
  BATON_RETURN_IF_ERROR(CopyEntries(shard, epoch, head, tail));
  for (size_t i = 0; i < part_count_; ++i) {
    BATON_RETURN_IF_ERROR(CheckPart(shard, parts_[i], i + 1 == part_count_, direct));
  }
  transaction_ = {{parts_.data(), part_count_},
                  requests_.receives(),
                  requests_.sends(),
                  requests_.send_bytes(),
                  static_cast<uint32_t>(part_count_),
                  static_cast<uint32_t>(request_count_),
                  kinds_};
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status TransactionReader::CopyEntries(uint32_t shard,
                                                                          uint64_t epoch,
                                                                          uint64_t head,
                                                                          uint64_t tail) {
  const uint64_t limit = std::min<uint64_t>(tail - head, arena::kMaxTransactionEntries);
  for (part_count_ = 0; part_count_ < limit;) {
    CommitEntry& entry = parts_[part_count_].entry;
    arena::CopyOnce(arena_.commit_entry(shard, epoch, head + part_count_), &entry);
    ++part_count_;
    if ((entry.flags & arena::kCommitLast) != 0) return absl::OkStatus();
  }
  return Invalid("flags: no entry ends the transaction, ", tail - head, " are published and ",
                 arena::kMaxTransactionEntries, " allowed");
}

[[gnu::always_inline]] inline absl::Status TransactionReader::CheckPart(uint32_t shard,
                                                                        TransactionPart& part,
                                                                        bool last,
                                                                        DirectQueuesOf direct) {
  CommitEntry& entry = part.entry;
  if ((entry.flags & ~arena::kCommitFlags) != 0) {
    return Invalid("flags: ", static_cast<int>(entry.flags), " has unknown bits");
  }
  if (resumed_ && NamesConnection(CommitKind(entry.kind)) && !CheckTarget(shard, entry).ok()) {
    // The connection has left the shard with this transaction, or its slot was freed by it.
    if (!arena::Acknowledges(entry)) {
      entry.kind = 0;
      return absl::OkStatus();
    }
    entry.kind = static_cast<uint8_t>(CommitKind::kAcknowledge);
  }
  kinds_ |= KindBit(CommitKind(entry.kind % 32));
  switch (CommitKind(entry.kind)) {
    case CommitKind::kConnection:
      if (arena::Acknowledges(entry)) BATON_RETURN_IF_ERROR(CheckAcknowledge(shard, entry));
      return CheckConnection(shard, part, direct);
    case CommitKind::kAcknowledge:
      return CheckAcknowledge(shard, entry);
    case CommitKind::kShardState:
      return CheckShardState(shard, entry);
    case CommitKind::kAccept:
    case CommitKind::kReject:
      if (entry.private_data_length > arena::kPrivateDataBytes) {
        return Invalid("private_data_length: ", entry.private_data_length, ", at most ",
                       arena::kPrivateDataBytes);
      }
      if (entry.target_shard >= arena_.shape().shards) {
        return Invalid("target_shard: ", entry.target_shard, " does not exist");
      }
      return CheckTarget(shard, entry);
    case CommitKind::kDisconnect:
      return CheckTarget(shard, entry);
    case CommitKind::kRelease:
      if (!last) return Invalid("kind: a release is not the last entry of its transaction");
      return absl::OkStatus();
    case CommitKind::kSharedReceives:
      return CheckSharedReceives(shard, part);
    case CommitKind::kHeap:
      return CheckHeap(entry);
  }
  return Invalid("kind: ", static_cast<int>(entry.kind), " is unknown");
}

[[gnu::always_inline]] inline absl::Status TransactionReader::CheckTarget(
    uint32_t shard, const CommitEntry& entry) const {
  if (entry.connection >= arena_.shape().connections) {
    return Invalid("connection: ", entry.connection, " does not exist");
  }
  const ConnectionRecord& record = arena_.connection(entry.connection);
  if (record.generation != entry.generation ||
      record.state == static_cast<uint32_t>(arena::ConnectionState::kFree)) {
    return Invalid("generation: connection ", entry.connection, " is no longer the one meant");
  }
  if (record.shard != shard) {
    if (resumed_ && WasMoved(entry)) return absl::OkStatus();
    return Invalid("connection: ", entry.connection, " belongs to shard ", record.shard);
  }
  return absl::OkStatus();
}

void TransactionReader::SetAdopted(absl::Span<const uint32_t> shards) {
  adopted_.assign(arena_.shape().shards, false);
  for (const uint32_t shard : shards) adopted_[shard] = true;
}

// Returns true if an accept in this transaction moved the connection into an adopted shard, and the
// entry may still be to be applied. The requests and the state of a connection that has arrived
// were applied before: an owner of its new shard may have gone on from there.
bool TransactionReader::WasMoved(const CommitEntry& entry) const {
  const ConnectionRecord& record = arena_.connection(entry.connection);
  const bool arrived = arena::LoadRelaxed(record.arriving) == 0;
  if (arrived && CommitKind(entry.kind) == CommitKind::kConnection) return false;
  const uint32_t shard = arena::LoadRelaxed(record.shard);
  if (!adopted_.empty() && (shard >= adopted_.size() || !adopted_[shard])) return false;
  const absl::Span<const TransactionPart> parts(parts_.data(), part_count_);
  return std::any_of(parts.begin(), parts.end(), [&](const auto& part) {
    return CommitKind(part.entry.kind) == CommitKind::kAccept &&
           part.entry.connection == entry.connection && part.entry.target_shard == shard;
  });
}

[[gnu::always_inline]] inline absl::Status TransactionReader::CheckConnection(
    uint32_t shard, TransactionPart& part, DirectQueuesOf direct) {
  const CommitEntry& entry = part.entry;
  BATON_RETURN_IF_ERROR(CheckTarget(shard, entry));
  if (seen_[entry.connection] == reads_) {
    return Invalid("connection: ", entry.connection, " appears twice in the transaction");
  }
  seen_[entry.connection] = reads_;
  const ConnectionRecord& record = arena_.connection(entry.connection);
  if (entry.state_slot != arena::kKeepState) {
    if (entry.state_slot > 1 || (entry.state_slot == record.state_slot && !resumed_)) {
      return Invalid("state_slot: ", entry.state_slot, " is not the free one");
    }
    if (entry.state_length > arena_.shape().connection_state_bytes) {
      return Invalid("state_length: ", entry.state_length, ", at most ",
                     arena_.shape().connection_state_bytes);
    }
  }
  BATON_RETURN_IF_ERROR(CheckReceiveEnd(entry));
  BATON_RETURN_IF_ERROR(
      CheckEnd("send_end", entry.send_end, record.send, arena_.shape().send_queue_depth));
  request_count_ += entry.receive_end - record.receive.committed;
  request_count_ += entry.send_end - record.send.committed;
  if (request_count_ > kMaxTransactionRequests) return TooManyRequests();
  part.direct = nullptr;
  if (verbs::mlx5::QueuePair* const queues = resumed_ ? nullptr : direct(entry.connection)) {
    const RequestList::Written written = WriteRequests(&part, queues);
    if (written == RequestList::Written::kAll) return absl::OkStatus();
    if (written == RequestList::Written::kWrong) return requests_.wrong();
  }
  part.first_receive = static_cast<uint32_t>(requests_.receives().size());
  BATON_RETURN_IF_ERROR(requests_.Add<true>(entry.connection, entry.generation,
                                            record.receive.committed, entry.receive_end));
  part.first_send = static_cast<uint32_t>(requests_.sends().size());
  return requests_.Add<false>(entry.connection, entry.generation, record.send.committed,
                              entry.send_end);
}

[[gnu::always_inline]] inline RequestList::Written TransactionReader::WriteRequests(
    TransactionPart* part, verbs::mlx5::QueuePair* direct) {
  const CommitEntry& entry = part->entry;
  const ConnectionRecord& record = arena_.connection(entry.connection);
  if (entry.receive_end != record.receive.committed) {
    part->receives_written = direct->receives().Begin();
    const RequestList::Written written =
        requests_.WriteReceives(entry.connection, entry.generation, record.receive.committed,
                                entry.receive_end, direct, &part->receives_written);
    if (written != RequestList::Written::kAll) return written;
  }
  if (entry.send_end != record.send.committed) {
    part->sends_written = direct->sends().Begin();
    const RequestList::Written written =
        requests_.WriteSends(entry.connection, entry.generation, record.send.committed,
                             entry.send_end, direct, &part->sends_written);
    if (written != RequestList::Written::kAll) return written;
  }
  part->direct = direct;
  return RequestList::Written::kAll;
}

bool TransactionReader::ReadPlain(uint32_t shard, TransactionPart* part, uint64_t* requests,
                                  uint64_t* send_bytes) {
  const CommitEntry& entry = part->entry;
  const ConnectionRecord& connection = arena_.connection(entry.connection);
  const arena::Shape& shape = arena_.shape();
  if (arena::Acknowledges(entry) && !MayAcknowledge(entry.acknowledged, arena_.shard(shard)))
      [[unlikely]] {
    return false;
  }
  if (connection.generation != entry.generation || connection.shard != shard ||
      !MayEndAt(entry.send_end, connection.send, shape.send_queue_depth) ||
      !(arena::HasSharedReceives(shape) ? entry.receive_end == connection.receive.committed
                                        : MayEndAt(entry.receive_end, connection.receive,
                                                   shape.receive_queue_depth))) [[unlikely]] {
    return false;
  }
  if (entry.state_slot != arena::kKeepState &&
      (entry.state_slot > 1 || entry.state_slot == connection.state_slot ||
       entry.state_length > shape.connection_state_bytes)) [[unlikely]] {
    return false;
  }
  *requests =
      entry.send_end - connection.send.committed + entry.receive_end - connection.receive.committed;
  if (*requests > kMaxTransactionRequests) return false;
  requests_.Clear(shard);
  if (WriteRequests(part, part->direct) != RequestList::Written::kAll) [[unlikely]]
    return false;
  *send_bytes = requests_.send_bytes();
  return true;
}

[[gnu::always_inline]] inline absl::Status TransactionReader::CheckReceiveEnd(
    const CommitEntry& entry) const {
  const arena::Shape& shape = arena_.shape();
  const QueueCursors& cursors = arena_.connection(entry.connection).receive;
  if (!arena::HasSharedReceives(shape)) {
    return CheckEnd("receive_end", entry.receive_end, cursors, shape.receive_queue_depth);
  }
  if (entry.receive_end == cursors.committed) return absl::OkStatus();
  return Invalid("receive_end: ", entry.receive_end, ", receives of the service are shared");
}

// The blocks of a heap may overlap: who loads the heap notices (worker/heap_blocks.h), and a peer
// or another shard cannot be harmed by it.
absl::Status TransactionReader::CheckHeap(const CommitEntry& entry) const {
  const auto heap = std::bit_cast<arena::HeapEntry>(entry);
  if (heap.count == 0 || heap.count > arena::kHeapChangesPerEntry) {
    return Invalid("count: ", heap.count, " changes of the heap, 1 to ",
                   arena::kHeapChangesPerEntry, " fit");
  }
  for (uint32_t i = 0; i < heap.count; ++i) {
    const arena::HeapChange& change = heap.changes[i];
    if (!arena::IsHeapBlock(arena::BlockOf(change), change.page, arena_.shape().heap_pages)) {
      return Invalid("changes[", i, "]: a block of ", change.pages, " pages and objects of ",
                     change.units, " units cannot begin at page ", change.page, " of ",
                     arena_.shape().heap_pages);
    }
  }
  return absl::OkStatus();
}

// A transaction may name only slots that are free in the driver's memory, because only the driver
// knows what the device still has. A resumed transaction leaves out slots that are not free: a dead
// driver has posted them, or may have.
absl::Status TransactionReader::CheckSharedReceives(uint32_t shard, TransactionPart& part) {
  const arena::Shape& shape = arena_.shape();
  auto named = std::bit_cast<arena::SharedReceivesEntry>(part.entry);
  if (!arena::HasSharedReceives(shape)) return Invalid("kind: the service shares no receives");
  if (named.count == 0 || named.count > arena::kSharedReceivesPerEntry) {
    return Invalid("count: ", named.count, " is not between 1 and ",
                   arena::kSharedReceivesPerEntry);
  }
  part.first_receive = static_cast<uint32_t>(requests_.receives().size());
  uint16_t kept = 0;
  for (uint32_t i = 0; i < named.count; ++i) {
    const uint16_t slot = named.slots[i];
    if (slot >= seen_shared_.size()) return Invalid("slots[", i, "]: ", slot, " does not exist");
    if (std::exchange(seen_shared_[slot], reads_) == reads_) {
      return Invalid("slots[", i, "]: ", slot, " appears twice in the transaction");
    }
    const arena::SharedReceiveState state = arena::StateOf(arena_.shared_receive(shard, slot));
    if (state != arena::SharedReceiveState::kFree) {
      if (resumed_) continue;
      return Invalid("slots[", i, "]: ", slot, " is not free");
    }
    if (++request_count_ > kMaxTransactionRequests) return TooManyRequests();
    // PostSharedReceive() makes the wr_id, because each post changes the slot's generation.
    const absl::Status checked =
        requests_.AddReceive(arena_.shared_receive_request(shard, slot), /*wr_id=*/0);
    if (!checked.ok()) return Invalid("shared receive ", slot, ": ", checked.message());
    named.slots[kept++] = slot;
  }
  named.count = kept;
  part.entry = std::bit_cast<CommitEntry>(named);
  shared_ += kept;
  const uint32_t posted = arena_.shard(shard).shared_receives_posted;
  if (posted + shared_ > shape.shared_receive_queue_depth) {
    return Invalid("slots: ", shared_, " exceed the shared queue, ", posted,
                   " are posted and it holds ", shape.shared_receive_queue_depth);
  }
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status TransactionReader::CheckAcknowledge(
    uint32_t shard, const CommitEntry& entry) const {
  const arena::ShardRecord& record = arena_.shard(shard);
  if (!MayAcknowledge(entry.acknowledged, record)) {
    return Invalid("acknowledged: ", entry.acknowledged, " is not between ", record.acknowledged,
                   " and ", record.completion_tail);
  }
  return absl::OkStatus();
}

absl::Status TransactionReader::CheckShardState(uint32_t shard, const CommitEntry& entry) const {
  const bool current = entry.state_slot == arena_.shard(shard).state_slot;
  if (entry.state_slot > 1 || (current && !resumed_)) {
    return Invalid("state_slot: ", entry.state_slot, " is not the free one of the shard");
  }
  if (entry.state_length > arena_.shape().shard_state_bytes) {
    return Invalid("state_length: ", entry.state_length, ", at most ",
                   arena_.shape().shard_state_bytes);
  }
  return absl::OkStatus();
}

}  // namespace baton::driver
