#include "tests/simulation/hostile.h"

#include <bit>
#include <cstring>
#include <vector>

#include "lib/arena/atomic_access.h"

namespace baton::simulation {
namespace {

using arena::CommitEntry;
using arena::CommitKind;

template <typename T>
void Scribble(T* place, Dice* dice) {
  uint64_t words[sizeof(T) / 8];
  for (uint64_t& word : words) word = dice->OneIn(3) ? dice->Below(8) : dice->Next();
  std::memcpy(static_cast<void*>(place), words, sizeof(T));
}

uint32_t SomeConnection(const arena::Arena& arena, uint32_t shard, Dice* dice) {
  const uint32_t count = arena.shape().connections;
  const uint32_t first = dice->Below(count);
  for (uint32_t i = 0; i < count; ++i) {
    const arena::ConnectionRecord& record = arena.connection((first + i) % count);
    if (record.shard == shard && record.state != 0) return (first + i) % count;
  }
  return kNothing;
}

CommitEntry Make(CommitKind kind) {
  CommitEntry entry = {};
  entry.kind = static_cast<uint8_t>(kind);
  entry.state_slot = arena::kKeepState;
  return entry;
}

CommitEntry Acknowledge(const arena::ShardRecord& record) {
  CommitEntry entry = Make(CommitKind::kAcknowledge);
  entry.acknowledged = record.completion_tail;
  return entry;
}

// A valid one, which changes nothing.
CommitEntry Touch(const arena::Arena& arena, uint32_t connection) {
  const arena::ConnectionRecord& record = arena.connection(connection);
  CommitEntry entry = Make(CommitKind::kConnection);
  entry.connection = connection;
  entry.generation = record.generation;
  entry.send_end = record.send.committed;
  entry.receive_end = record.receive.committed;
  return entry;
}

// Faults that need no connection. Everything before the last entry would do harm on its own.
std::vector<CommitEntry> ShardFault(const arena::ShardRecord& record, Dice* dice) {
  CommitEntry entry = Acknowledge(record);
  switch (dice->Below(6)) {
    case 0:
      entry.kind = static_cast<uint8_t>(8 + dice->Below(200));
      return {Acknowledge(record), entry};
    case 1:
      entry.acknowledged += 100'000;  // and not by the time that it is read either
      return {entry};
    case 2:
      entry.acknowledged = record.acknowledged - 1;
      return {entry};
    case 3:
      return {Make(CommitKind::kRelease), entry};
    case 4: {
      CommitEntry state = Make(CommitKind::kShardState);
      state.state_slot = record.state_slot;
      return {Acknowledge(record), state};
    }
    default: {
      CommitEntry accept = Make(CommitKind::kAccept);
      accept.target_shard = 1000;
      return {entry, accept};
    }
  }
}

// A valid change of the heap, and an invalid one.
std::vector<CommitEntry> HeapFault(const arena::Arena& arena, const arena::ShardRecord& record,
                                   Dice* dice) {
  const uint32_t pages = arena.shape().heap_pages;
  arena::HeapEntry heap = {};
  heap.kind = static_cast<uint8_t>(CommitKind::kHeap);
  heap.count = 2;
  heap.changes[0] = arena::ChangeOf(dice->Below(pages), {1, 0, 1});
  switch (dice->Below(4)) {
    case 0:
      heap.count = static_cast<uint16_t>(arena::kHeapChangesPerEntry + 1 + dice->Below(9));
      break;
    case 1:
      heap.changes[1] = arena::ChangeOf(pages + dice->Below(9), {1, 0, 1});
      break;
    case 2:
      heap.changes[1] = arena::ChangeOf(pages - 1, {2, 0, 1});
      break;
    default:
      heap.changes[1] = arena::ChangeOf(0, {1, 0, 2});  // there is one object
  }
  return {Acknowledge(record), std::bit_cast<CommitEntry>(heap)};
}

std::vector<CommitEntry> ConnectionFault(const arena::Arena& arena, uint32_t connection,
                                         const arena::ShardRecord& shard, Dice* dice) {
  const arena::ConnectionRecord& record = arena.connection(connection);
  CommitEntry entry = Touch(arena, connection);
  switch (dice->Below(8)) {
    case 0:
      entry.connection = arena.shape().connections + dice->Below(9);
      break;
    case 6:
      entry.flags = arena::kCommitAcknowledges;
      entry.acknowledged =
          dice->OneIn(2) ? shard.acknowledged - 1 : shard.completion_tail + 100'000;
      break;
    case 1:
      entry.generation += 1;
      break;
    case 2:
      entry.send_end = record.send.committed - 1;
      break;
    case 3:
      entry.receive_end =
          record.receive.acknowledged + 2 * uint64_t{arena.shape().receive_queue_depth} + 1;
      break;
    case 4:
      entry.state_slot = record.state_slot;
      break;
    case 5:
      return {Acknowledge(shard), entry, entry};
    default:
      // Its next request, with buffers that are not the service's.
      if (record.send.committed - record.send.completed >= arena.shape().send_queue_depth ||
          record.send.committed - record.send.acknowledged >=
              2 * uint64_t{arena.shape().send_queue_depth}) {
        entry.generation += 1;
        break;
      }
      arena::WorkRequest& request = arena.send_request(connection, entry.send_end++);
      request = {};
      request.sge_count = 1;
      request.sges[0] = {arena.shape().buffer_bytes - 8, 16, 0};
  }
  return {Acknowledge(shard), entry};
}

}  // namespace

bool PublishInvalid(const arena::Arena& arena, uint32_t slot, Context* context) {
  Dice* const dice = &context->dice;
  const uint32_t shard = dice->Below(arena.shape().shards);
  const arena::ShardRecord& record = arena.shard(shard);
  const uint64_t word = arena::LoadAcquire(record.owner.ownership);
  if (arena::OwnershipSlot(word) != slot) return false;
  const uint64_t epoch = arena::OwnershipEpoch(word);
  arena::BankHeader& bank = arena.bank(shard, epoch);
  const uint64_t tail = arena::CursorIndex(bank.tail);
  context->Note("hostile", slot, shard, epoch);
  // What was published before is to be applied: nothing here may touch it. Nor may a transaction of
  // another shard, half applied, make valid what is invalid now.
  for (uint32_t i = 0; i < arena.shape().shards; ++i) {
    const arena::ShardRecord& other = arena.shard(i);
    const uint64_t owner = arena::OwnershipEpoch(other.owner.ownership);
    if (arena.bank(i, owner).tail != other.commit_head) return false;
  }
  if (dice->OneIn(8)) {
    const uint64_t far = tail + arena::kCommitLogEntries + 1 + dice->Below(1000);
    arena::StoreRelease(bank.tail, arena::PackCursor(epoch, far));
    return true;
  }
  const uint32_t connection = SomeConnection(arena, shard, dice);
  std::vector<CommitEntry> entries;
  if (arena.shape().heap_pages != 0 && dice->OneIn(4)) {
    entries = HeapFault(arena, record, dice);
  } else {
    entries = connection == kNothing || dice->OneIn(2)
                  ? ShardFault(record, dice)
                  : ConnectionFault(arena, connection, record, dice);
  }
  if (!dice->OneIn(8)) entries.back().flags |= arena::kCommitLast;
  for (size_t i = 0; i < entries.size(); ++i) {
    arena.commit_entry(shard, epoch, tail + i) = entries[i];
    context->Note("hostile entry", entries[i].kind, entries[i].connection, entries[i].acknowledged);
  }
  arena::StoreRelease(bank.tail, arena::PackCursor(epoch, tail + entries.size()));
  return true;
}

uint32_t ChangeCommitted(const arena::Arena& arena, uint32_t slot, Context* context) {
  for (uint32_t i = 0; i < arena.shape().connections; ++i) {
    const arena::ConnectionRecord& record = arena.connection(i);
    const uint64_t word = arena::LoadAcquire(arena.shard(record.shard).owner.ownership);
    const auto state = arena::ConnectionState(record.state);
    const bool receive = record.receive.posted != record.receive.committed;
    if (arena::OwnershipSlot(word) != slot ||
        (!receive && record.send.posted == record.send.committed) ||
        (state != arena::ConnectionState::kRequested &&
         state != arena::ConnectionState::kConnecting)) {
      continue;
    }
    context->Note("hostile to its own", slot, i);
    (receive ? arena.receive_request(i, record.receive.posted)
             : arena.send_request(i, record.send.posted))
        .opcode = 200;
    return i;
  }
  return kNothing;
}

void ScribbleBank(const arena::Arena& arena, uint32_t shard, uint64_t epoch, Dice* dice) {
  const uint32_t count = dice->Below(8);
  const uint32_t pages = arena.shape().heap_pages;
  for (uint32_t i = 0; i < count; ++i) {
    Scribble(&arena.commit_entry(shard, epoch, i), dice);
    if (pages == 0 || !dice->OneIn(2)) continue;
    arena::HeapEntry heap = {};
    heap.kind = static_cast<uint8_t>(CommitKind::kHeap);
    heap.count = 1;
    heap.changes[0] = arena::ChangeOf(dice->Below(pages), {1, 0, 1});
    arena.commit_entry(shard, epoch, i) = std::bit_cast<CommitEntry>(heap);
  }
  arena::StoreRelease(arena.bank(shard, epoch).tail, arena::PackCursor(epoch, dice->Below(2000)));
}

void ScribbleUncommitted(const arena::Arena& arena, uint32_t shard, Dice* dice) {
  using State = uint64_t[8];
  Scribble(reinterpret_cast<State*>(arena.shard_state(shard, 1 - arena.shard(shard).state_slot)),
           dice);
  const uint32_t connection = SomeConnection(arena, shard, dice);
  if (connection == kNothing) return;
  const arena::ConnectionRecord& record = arena.connection(connection);
  Scribble(reinterpret_cast<State*>(arena.connection_state(connection, 1 - record.state_slot)),
           dice);
  const auto free = [](const arena::QueueCursors& cursors, uint32_t depth) {
    return 2 * uint64_t{depth} > cursors.committed - cursors.acknowledged;
  };
  if (free(record.send, arena.shape().send_queue_depth)) {
    Scribble(&arena.send_request(connection, record.send.committed), dice);
  }
  if (!arena::HasSharedReceives(arena.shape()) &&
      free(record.receive, arena.shape().receive_queue_depth)) {
    Scribble(&arena.receive_request(connection, record.receive.committed), dice);
  }
}

}  // namespace baton::simulation
