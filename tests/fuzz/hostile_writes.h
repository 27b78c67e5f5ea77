// What a worker can write into the memory that it maps, mostly near what is valid.
#ifndef TESTS_FUZZ_HOSTILE_WRITES_H_
#define TESTS_FUZZ_HOSTILE_WRITES_H_

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/verbs/verbs.h"
#include "tests/fuzz/program.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::fuzz {

// The kinds of commit entries and one that is unknown. kHeap has few bytes, so that inputs from
// before there was one mean what they did.
inline uint8_t KindOf(uint8_t byte) {
  return byte / 9 == 27 ? static_cast<uint8_t>(arena::CommitKind::kHeap) : byte % 9;
}

// As TestShape, with heaps.
inline arena::Shape ShapeWithHeaps(uint32_t shards, uint32_t connections, uint32_t depth) {
  arena::Shape shape = driver::testing::TestShape(shards, connections, depth);
  shape.heap_pages = 4;
  return shape;
}

// A block of a heap that may begin at `page`, or none.
inline arena::HeapBlock SomeBlock(Program& program, uint32_t page, uint32_t heap_pages) {
  const uint8_t how = program.Byte();
  if ((how & 3) == 0) return {};
  const uint32_t pages = 1 + (uint32_t{how} >> 2 & 3) % (heap_pages - page);
  if ((how & 16) == 0) return {pages, 0, 1};
  return {pages, 1, program.Take<uint64_t>() | 1};
}

class HostileWrites {
 public:
  explicit HostileWrites(const arena::Arena& arena)
      : arena_(arena),
        shape_(arena.shape()),
        // Behind the header, which nobody reads again.
        base_(reinterpret_cast<uint8_t*>(&arena.worker(0)) - arena.worker_map().workers) {}

  // Some bytes, anywhere in what can be mapped for writing.
  void Raw(Program& program) {
    const uint32_t shard = program.Below(shape_.shards);
    const uint32_t connection = program.Below(shape_.connections);
    const uint32_t epoch = program.Below(arena::kCommitBanks);
    const uint32_t index = program.Byte();
    uint8_t* at = base_;
    switch (program.Below(10)) {
      case 0:
        at = Bytes(arena_.bank(shard, epoch));
        break;
      case 1:
        at = Bytes(arena_.commit_entry(shard, epoch, index));
        break;
      case 2:
        at = Bytes(arena_.send_request(connection, index));
        break;
      case 3:
        at = Bytes(arena_.receive_request(connection, index));
        break;
      case 4:
        at = arena_.connection_state(connection, index & 1);
        break;
      case 5:
        at = arena_.shard_state(shard, index & 1);
        break;
      case 6:
        at = arena_.private_data(connection);
        break;
      case 7:
        at = Bytes(arena_.worker(index % shape_.workers));
        break;
      case 8: {
        const uint64_t offset = program.Take<uint32_t>() % shape_.buffer_bytes;
        const auto bytes = program.Block(program.Below(64));
        const size_t room = std::min<size_t>(bytes.size(), shape_.buffer_bytes - offset);
        std::memcpy(arena_.buffers() + offset, bytes.data(), room);
        return;
      }
      default:
        at = base_ + program.Take<uint32_t>() % arena_.worker_map().total;
    }
    at += program.Byte();
    const auto bytes = program.Block(program.Below(64));
    if (at >= base_ + arena_.worker_map().total) return;
    const size_t room = static_cast<size_t>(base_ + arena_.worker_map().total - at);
    std::memcpy(at, bytes.data(), std::min(bytes.size(), room));
  }

  // Pages given back to the system: they are zeros when they are read again.
  void Punch(Program& program) {
    const bool buffers = program.Flag();
    const uint64_t bytes = buffers ? shape_.buffer_bytes : arena_.worker_map().total;
    // Behind the header's page, which says which memory it is.
    const uint64_t first = buffers ? 0 : arena::kPageBytes;
    const uint64_t at =
        first + program.Take<uint16_t>() * uint64_t{arena::kPageBytes} % (bytes - first);
    BATON_CHECK(fallocate(buffers ? arena_.buffers_fd() : arena_.worker_log_fd(),
                          FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                          static_cast<off_t>(arena::kPageBytes) * (1 + program.Below(4))) == 0);
  }

  // A commit entry, at the head of the bank or near it.
  void Entry(Program& program, uint32_t shard, uint64_t epoch) {
    const arena::ShardRecord& record = arena_.shard(shard);
    const uint32_t index = program.Below(shape_.connections + 1);
    const arena::ConnectionRecord& connection = arena_.connection(index % shape_.connections);
    arena::CommitEntry entry = {};
    entry.kind = KindOf(program.Byte());
    entry.flags = program.Byte() & 3;
    entry.connection = index < shape_.connections ? index : program.Take<uint32_t>();
    const uint8_t how = program.Byte();
    entry.generation = connection.generation - (how % 8 == 0 ? 1 : 0);
    entry.state_slot = (how & 16) ? arena::kKeepState : 1 - connection.state_slot;
    if (how & 32) entry.state_slot = program.Take<uint32_t>();
    entry.send_end = program.Near(connection.send.committed);
    entry.receive_end = program.Near(connection.receive.committed);
    entry.state_length =
        static_cast<uint32_t>(program.Near((how & 64) ? shape_.connection_state_bytes : 0));
    entry.acknowledged = program.Near(record.completion_tail);
    entry.target_shard = (how & 128) ? program.Take<uint32_t>() : program.Below(shape_.shards);
    entry.private_data_length = static_cast<uint32_t>(program.Near(arena::kPrivateDataBytes));
    if (arena::CommitKind(entry.kind) == arena::CommitKind::kHeap && shape_.heap_pages != 0) {
      entry = HeapEntry(program, entry.flags);
    }
    const uint64_t bank = (program.Byte() % 16 == 0) ? epoch - 1 : epoch;
    const uint64_t head = arena::CursorIndex(record.commit_head);
    arena_.commit_entry(shard, bank, head + program.Below(16)) = entry;
  }

  void Tail(Program& program, uint32_t shard, uint64_t epoch) {
    const uint8_t how = program.Byte();
    const uint64_t head = arena::CursorIndex(arena_.shard(shard).commit_head);
    const uint64_t index = (how & 3) != 0 ? head + program.Below(16) : program.Near(head);
    const uint64_t of = (how & 28) != 0 ? epoch : program.Near(epoch);
    arena::StoreRelease(arena_.bank(shard, epoch).tail, arena::PackCursor(of, index));
  }

  // What an owner says of the completion that it is at.
  void Hints(Program& program, uint32_t shard, uint64_t epoch) {
    const arena::ShardRecord& record = arena_.shard(shard);
    arena::BankHeader& bank = arena_.bank(shard, epoch);
    const uint8_t how = program.Byte();
    const uint64_t at = (how & 4) ? arena::LoadAcquire(record.completion_tail)
                                  : arena::LoadAcquire(record.acknowledged);
    const uint64_t word = program.Near(at);
    if (how & 1) arena::StoreRelaxed(bank.read_cursor, word);
    if (how & 2) arena::StoreRelaxed(bank.handling, word);
  }

  // A work request, where the next is read.
  void Request(Program& program) {
    const uint32_t connection = program.Below(shape_.connections);
    const arena::ConnectionRecord& record = arena_.connection(connection);
    const bool send = program.Flag();
    arena::WorkRequest request = {};
    const uint8_t how = program.Byte();
    request.opcode = send || (how & 3) == 0 ? program.Byte() % 9 : 0;
    request.flags = (how & 12) == 0 ? program.Byte() : 0;
    request.sge_count = program.Byte() % (arena::kMaxSges + 2);
    request.one_line = (how & 64) ? program.Byte() % 3 : 0;
    request.remote_address = program.Near(0);
    request.rkey = program.Byte();
    for (arena::BufferRange& range : request.sges) {
      range.offset = program.Near((how & 16) ? shape_.buffer_bytes : 0);
      range.length =
          static_cast<uint32_t>(program.Near((how & 32) ? shape_.buffer_bytes - range.offset : 8));
    }
    request.only = request.sges[0];
    const uint64_t at = program.Below(8);
    if (send) {
      arena_.send_request(connection, record.send.posted + at) = request;
    } else {
      arena_.receive_request(connection, record.receive.posted + at) = request;
    }
  }

 private:
  arena::CommitEntry HeapEntry(Program& program, uint8_t flags) const {
    arena::HeapEntry heap = {};
    heap.kind = static_cast<uint8_t>(arena::CommitKind::kHeap);
    heap.flags = flags;
    heap.count = static_cast<uint16_t>(program.Below(arena::kHeapChangesPerEntry + 2));
    for (arena::HeapChange& change : heap.changes) {
      const uint32_t page = program.Below(shape_.heap_pages);
      change = arena::ChangeOf(page, SomeBlock(program, page, shape_.heap_pages));
      if (program.Below(4) == 0) change.page = static_cast<uint32_t>(program.Near(page));
      if (program.Below(4) == 0) change.pages = static_cast<uint32_t>(program.Near(change.pages));
      if (program.Below(4) == 0) change.units = static_cast<uint32_t>(program.Near(change.units));
    }
    return std::bit_cast<arena::CommitEntry>(heap);
  }

  template <typename T>
  static uint8_t* Bytes(T& object) {
    return reinterpret_cast<uint8_t*>(&object);
  }

  const arena::Arena& arena_;
  const arena::Shape& shape_;
  uint8_t* const base_;
};

// Transactions of one shard as a correct worker makes them, and nearly.
class HostileCommits {
 public:
  HostileCommits(const arena::Arena* arena, driver::testing::CommitWriter* writer, uint32_t shard)
      : arena_(*arena), shape_(arena->shape()), writer_(*writer), shard_(shard) {}

  // Stages what is possible, as much of it as the program says.
  void Stage(Program& program) {
    const uint8_t what = program.Byte();
    for (uint32_t i = 0; i < shape_.connections; ++i) {
      const arena::ConnectionRecord record = arena::CopyOnce(arena_.connection(i));
      const auto state = arena::ConnectionState(record.state);
      if (record.shard != shard_ || state == arena::ConnectionState::kFree) continue;
      const uint8_t how = program.Byte();
      if (state == arena::ConnectionState::kRequested) Answer(i, how);
      if (what & 4) StageRequests(program, i, record.receive, true, how >> 4 & 3);
      if (what & 8) StageRequests(program, i, record.send, false, how >> 6);
      if (what & 16) writer_.ConnectionState(i, "state", 1);
      if (how == 255) writer_.Disconnect(i);
    }
    if (what & 32) writer_.Acknowledge(arena::LoadAcquire(arena_.shard(shard_).completion_tail));
    if (what & 64) writer_.ShardState("root", 1);
    if ((what & 131) == 131 && shape_.heap_pages != 0) StageHeap(program);
    if ((what & 128) && program.Below(4) == 0) writer_.Release();
  }

  // Takes every connection that is requested.
  void Welcome() {
    for (uint32_t i = 0; i < shape_.connections; ++i) {
      const arena::ConnectionRecord record = arena::CopyOnce(arena_.connection(i));
      if (record.shard == shard_ &&
          arena::ConnectionState(record.state) == arena::ConnectionState::kRequested) {
        writer_.Receive(i, 64 * i, 64);
        writer_.Accept(i, shard_, "welcome");
      }
    }
  }

  // Stages as much as there is room for.
  void Exchange() {
    for (uint32_t i = 0; i < shape_.connections; ++i) {
      const arena::ConnectionRecord record = arena::CopyOnce(arena_.connection(i));
      if (record.shard != shard_ ||
          arena::ConnectionState(record.state) != arena::ConnectionState::kEstablished) {
        continue;
      }
      Program none(nullptr, 0);
      StageRequests(none, i, record.receive, true, shape_.receive_queue_depth);
      StageRequests(none, i, record.send, false, shape_.send_queue_depth);
    }
  }

  // Changes one thing in it. What is changed is mostly near what it was, or near its bound.
  void Distort(Program& program) {
    std::vector<arena::CommitEntry>& entries = writer_.open();
    if (entries.empty()) writer_.Add(arena::CommitKind(KindOf(program.Byte())));
    arena::CommitEntry& entry = entries[program.Byte() % entries.size()];
    if (program.Flag() && entry.kind == static_cast<uint8_t>(arena::CommitKind::kConnection)) {
      return DistortRequest(program, entry);
    }
    switch (program.Below(12)) {
      case 0:
        entry.kind = KindOf(program.Byte());
        break;
      case 1:
        entry.flags ^= program.Byte();
        break;
      case 2:
        entry.connection =
            Narrow(program.Near(Either(program, entry.connection, shape_.connections)));
        break;
      case 3:
        entry.generation = Narrow(program.Near(entry.generation));
        break;
      case 4:
        entry.state_slot = Narrow(program.Near(program.Flag() ? 0 : entry.state_slot));
        break;
      case 5:
        entry.send_end = End(program, entry, /*send=*/true);
        break;
      case 6:
        entry.receive_end = End(program, entry, /*send=*/false);
        break;
      case 7:
        entry.state_length = Narrow(
            program.Near(Either(program, shape_.connection_state_bytes, shape_.shard_state_bytes)));
        entry.state_slot &= 1;
        break;
      case 8:
        entry.acknowledged = program.Near(entry.acknowledged);
        break;
      case 9:
        entry.target_shard = Narrow(program.Near(Either(program, entry.target_shard, 0)));
        break;
      case 10:
        entry.private_data_length =
            Narrow(program.Near(Either(program, 0, arena::kPrivateDataBytes)));
        break;
      default: {  // twice, with other ends
        const arena::ConnectionRecord record = Record(entry);
        arena::CommitEntry again = entry;
        again.send_end = record.send.committed + program.Below(3);
        again.receive_end = record.receive.committed + program.Below(3);
        entries.push_back(again);
      }
    }
  }

 private:
  static uint32_t Narrow(uint64_t value) { return static_cast<uint32_t>(value); }
  static uint64_t Either(Program& program, uint64_t one, uint64_t other) {
    return program.Flag() ? one : other;
  }

  arena::ConnectionRecord Record(const arena::CommitEntry& entry) const {
    return arena::CopyOnce(arena_.connection(entry.connection % shape_.connections));
  }

  // At one of the bounds of what can be committed, or beyond it.
  uint64_t End(Program& program, const arena::CommitEntry& entry, bool send) const {
    const arena::ConnectionRecord record = Record(entry);
    const arena::QueueCursors& cursors = send ? record.send : record.receive;
    const uint64_t depth = send ? shape_.send_queue_depth : shape_.receive_queue_depth;
    const uint64_t bases[] = {cursors.committed, cursors.completed, cursors.acknowledged};
    const uint64_t steps[] = {1, depth, depth + 1, 2 * depth, 2 * depth + 1, ~uint64_t{0}};
    const uint8_t how = program.Byte();
    if (how > 200) return program.Near(cursors.committed);
    return bases[how % 3] + steps[how / 3 % 6];
  }

  void StageHeap(Program& program) {
    for (uint32_t left = 1 + program.Below(4); left > 0; --left) {
      const uint32_t page = program.Below(shape_.heap_pages);
      writer_.Heap(page, SomeBlock(program, page, shape_.heap_pages));
    }
  }

  void Answer(uint32_t connection, uint8_t how) {
    switch (how & 7) {
      case 0:
        break;
      case 1:
        writer_.Reject(connection, "no");
        break;
      default:
        writer_.Accept(connection, (shard_ + (how >> 1 & 1)) % shape_.shards, "welcome");
    }
  }

  void StageRequests(Program& program, uint32_t connection, const arena::QueueCursors& cursors,
                     bool receive, uint32_t more) {
    const uint64_t depth = receive ? shape_.receive_queue_depth : shape_.send_queue_depth;
    for (uint64_t n = 0; n <= more; ++n) {
      if (cursors.committed + n - cursors.completed >= depth ||
          cursors.committed + n - cursors.acknowledged >= 2 * depth) {
        return;
      }
      if (receive) {
        writer_.Receive(connection, 64 * connection, 64);
      } else {
        writer_.Send(connection, 4096 + 64 * connection, 8).opcode =
            static_cast<uint8_t>(program.Below(verbs::kOpcodeCount));
      }
    }
  }

  // One of those that the entry releases, if it releases some.
  void DistortRequest(Program& program, const arena::CommitEntry& entry) {
    const uint32_t index = entry.connection % shape_.connections;
    const arena::ConnectionRecord record = Record(entry);
    const uint64_t sends = entry.send_end - record.send.committed;
    const bool send = sends > 0 && sends <= shape_.send_queue_depth && program.Flag();
    const uint64_t count = send ? sends : entry.receive_end - record.receive.committed;
    const uint64_t at = (send ? record.send : record.receive).committed +
                        program.Byte() % std::clamp<uint64_t>(count, 1, 8);
    arena::WorkRequest& request =
        send ? arena_.send_request(index, at) : arena_.receive_request(index, at);
    arena::BufferRange& range =
        request.one_line != 0 ? request.only : request.sges[program.Below(arena::kMaxSges)];
    switch (program.Below(8)) {
      case 0:
        request.opcode = program.Byte();
        break;
      case 1:
        request.flags = program.Byte();
        break;
      case 2:
        request.sge_count = program.Byte() % 8;
        break;
      case 3:
        request.remote_address = program.Near(request.remote_address);
        break;
      case 4:
        range.offset = program.Near(Either(program, range.offset, shape_.buffer_bytes));
        break;
      case 5:
        range.length =
            Narrow(program.Near(Either(program, range.length, shape_.buffer_bytes - range.offset)));
        break;
      case 6:
        request.one_line = program.Byte() % 3;
        request.only = request.sges[0];
        break;
      default:
        request.sge_count = arena::kMaxSges;
        request.one_line = 0;
        for (arena::BufferRange& each : request.sges) each.length = program.Take<uint32_t>();
    }
  }

  const arena::Arena& arena_;
  const arena::Shape& shape_;
  driver::testing::CommitWriter& writer_;
  const uint32_t shard_;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HOSTILE_WRITES_H_
