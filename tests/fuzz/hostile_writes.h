// What a worker can write into the memory that it maps, mostly near what is valid.
#ifndef TESTS_FUZZ_HOSTILE_WRITES_H_
#define TESTS_FUZZ_HOSTILE_WRITES_H_

#include <fcntl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "tests/fuzz/program.h"

namespace baton::fuzz {

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
    entry.kind = program.Byte() % 9;
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
  template <typename T>
  static uint8_t* Bytes(T& object) {
    return reinterpret_cast<uint8_t*>(&object);
  }

  const arena::Arena& arena_;
  const arena::Shape& shape_;
  uint8_t* const base_;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HOSTILE_WRITES_H_
