// Transactions of one shard as a correct worker makes them, and nearly.
#ifndef TESTS_FUZZ_HOSTILE_COMMITS_H_
#define TESTS_FUZZ_HOSTILE_COMMITS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/verbs/verbs.h"
#include "tests/fuzz/program.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::fuzz {

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
    if (entries.empty()) writer_.Add(arena::CommitKind(program.Byte() % 9));
    arena::CommitEntry& entry = entries[program.Byte() % entries.size()];
    if (program.Flag() && entry.kind == static_cast<uint8_t>(arena::CommitKind::kConnection)) {
      return DistortRequest(program, entry);
    }
    switch (program.Below(12)) {
      case 0:
        entry.kind = program.Byte() % 9;
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

#endif  // TESTS_FUZZ_HOSTILE_COMMITS_H_
