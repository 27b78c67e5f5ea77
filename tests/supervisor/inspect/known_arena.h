// An arena whose every word the test has written, as its driver and its worker would.
#ifndef TESTS_SUPERVISOR_INSPECT_KNOWN_ARENA_H_
#define TESTS_SUPERVISOR_INSPECT_KNOWN_ARENA_H_

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "lib/arena/arena.h"
#include "lib/arena/text_field.h"
#include "lib/verbs/verbs.h"
#include "supervisor/inspect/arena_view.h"
#include "supervisor/inspect/memory.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::inspect::testing {

inline Memory MemoryOf(int fd, arena::MemoryKind kind) {
  struct stat info = {};
  fstat(fd, &info);
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return Memory(std::make_shared<FileDescriptor>(open(path.c_str(), O_RDONLY | O_CLOEXEC)), 0,
                static_cast<uint64_t>(info.st_size), arena::kMemoryTitles[kind]);
}

inline ArenaFiles FilesOf(const arena::Arena& arena) {
  ArenaFiles files;
  files.memories[arena::kWorkerLogMemory] =
      MemoryOf(arena.worker_log_fd(), arena::kWorkerLogMemory);
  files.memories[arena::kDriverLogMemory] =
      MemoryOf(arena.driver_log_fd(), arena::kDriverLogMemory);
  files.memories[arena::kBuffersMemory] = MemoryOf(arena.buffers_fd(), arena::kBuffersMemory);
  files.memories[arena::kRecoveryMemory] = MemoryOf(arena.recovery_fd(), arena::kRecoveryMemory);
  files.pid = 4711;
  files.program = "baton-keeper";
  return files;
}

inline arena::WorkRequest Request(uint64_t tag, uint64_t offset, uint32_t length) {
  arena::WorkRequest request = {};
  request.tag = tag;
  request.sge_count = 1;
  request.sges[0] = {offset, length, 0};
  return request;
}

inline void SetState(uint8_t* slot, std::string_view text) {
  std::copy(text.begin(), text.end(), slot);
}

inline void FillShards(const arena::Arena& arena);
inline void FillConnections(const arena::Arena& arena);
inline void FillRequests(const arena::Arena& arena);

// Worker 7 in slot 1 owns shard 0 in epoch 3, with worker 9 as heir; nobody owns shard 1.
// Connection 2 of shard 0 has, of its sends, two that are completed and not acknowledged, one
// posted, one maybe posted and one committed; and of its receives two posted. Connection 5 has
// ended.
inline void Fill(const arena::Arena& arena) {
  FillShards(arena);
  FillConnections(arena);
  FillRequests(arena);
}

inline void FillShards(const arena::Arena& arena) {
  using arena::PackCursor;
  arena::ShardRecord& shard = arena.shard(0);
  shard.owner.owner_worker_id = 7;
  shard.owner.heir_worker_id = 9;
  shard.owner.cut_epoch = 2;
  shard.owner.cut_tail = 11;
  shard.owner.ownership = arena::PackOwnership(3, 1);
  shard.commit_head = PackCursor(3, 40);
  shard.completion_tail = 21;
  shard.acknowledged = 17;
  shard.connections = 2;
  shard.transactions = 33;
  shard.state_slot = 1;
  shard.state_length = 5;
  shard.state_version = 4;
  SetState(arena.shard_state(0, 0), "before");
  SetState(arena.shard_state(0, 1), "after");
  arena.bank(0, 3).tail = PackCursor(3, 42);
  arena.bank(0, 3).read_cursor = 20;
  arena.bank(0, 3).handling = 1 + 19;
  arena.shard(1).owner.ownership = arena::PackOwnership(1, arena::kNobody);
  arena.shard(1).commit_head = PackCursor(1, 0);
  arena.bank(1, 1).tail = PackCursor(1, 0);

  arena::WorkerSlot& worker = arena.worker(1);
  worker.heartbeat = 99;
  worker.sleeping = 1;
  worker.thread_locks[0].futex = 1234;
  worker.thread_locks[1].futex = 0x40000000;
}

inline void FillConnections(const arena::Arena& arena) {
  arena::ConnectionRecord& one = arena.connection(2);
  one.generation = 6;
  one.shard = 0;
  one.qp_number = 77;
  one.send = {105, 103, 102, 100};
  one.send_attempted = 104;
  one.receive = {12, 12, 10, 10};
  one.receive_attempted = 12;
  one.state_slot = 0;
  one.state_length = 4;
  one.state_version = 1;
  one.tag = 55;
  one.bytes_received = 640;
  one.listener_port = 7471;
  one.answered = one.was_established = 1;
  one.initiator_depth = 16;
  one.responder_resources = 1;
  one.private_data_length = 2;
  std::memcpy(one.private_data, "hi", 2);
  arena::SetText(one.local_address, "10.0.0.1:7471");
  arena::SetText(one.peer_address, "10.0.0.2:4000");
  SetState(arena.connection_state(2, 0), "acct");
  one.state = static_cast<uint32_t>(arena::ConnectionState::kEstablished);

  arena::ConnectionRecord& ended = arena.connection(5);
  ended.generation = 2;
  ended.shard = 0;
  ended.last_status = static_cast<uint32_t>(verbs::CompletionStatus::kFlushError);
  ended.poison = static_cast<uint32_t>(arena::PoisonLevel::kSilent);
  ended.state = static_cast<uint32_t>(arena::ConnectionState::kClosed);
}

inline void FillRequests(const arena::Arena& arena) {
  arena.send_request(2, 100) = Request(1, 0, 64);
  arena.send_request(2, 101) = Request(2, 64, 64);
  arena::WorkRequest write = Request(3, 128, 32);
  write.opcode = static_cast<uint8_t>(verbs::Opcode::kWriteWithImmediate);
  write.flags = arena::kRequestFence | arena::kRequestSolicited;
  write.immediate = 0xabcd;
  write.remote_address = 0x7f0000001000;
  write.rkey = 0x1234;
  write.sge_count = 2;
  write.sges[1] = {4096, 8, 0};
  arena.send_request(2, 102) = write;
  arena::WorkRequest swap = Request(4, 256, 8);
  swap.opcode = static_cast<uint8_t>(verbs::Opcode::kCompareAndSwap);
  swap.remote_address = 0x1000;
  swap.rkey = 0x99;
  swap.compare_add = 5;
  swap.swap = 6;
  arena.send_request(2, 103) = swap;
  arena::WorkRequest invalidate = Request(5, 0, 0);
  invalidate.opcode = static_cast<uint8_t>(verbs::Opcode::kSendWithInvalidate);
  invalidate.invalidate_rkey = 0x77;
  arena.send_request(2, 104) = invalidate;
  arena.receive_request(2, 10) = Request(8, 1024, 512);
  arena.receive_request(2, 11) = Request(9, 1536, 512);
}

inline arena::Arena KnownArena(const std::string& service = "kv") {
  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(2, 8, 8), service).value();
  Fill(arena);
  return arena;
}

// Two shards, with heaps of 64 pages behind 64 KiB of buffers. That of shard 0 keeps an object of 3
// pages at page 2, and 2 of 4 objects of 28 units in a block at page 10; its owner has scratch
// memory besides. Shard 1 has not used its heap.
inline arena::Arena ArenaWithHeaps(const std::string& service = "kv") {
  arena::Shape shape = driver::testing::TestShape(2, 8, 8);
  shape.heap_pages = 64;
  shape.buffer_bytes += shape.shards * arena::HeapBytes(shape);
  arena::Arena arena = arena::Arena::Create(shape, service).value();
  Fill(arena);
  arena.heap(0)[2] = {3, 0, 1};
  arena.heap(0)[10] = {2, 28, 0b101};
  arena::BankHeader& bank = arena.bank(0, 3);
  bank.heap_kept = 3 * 4096 + 2 * 28 * 64;
  bank.heap_scratch = 4096;
  bank.heap_held = uint64_t{1} << 60;
  bank.heap_largest = 53 * 4096;
  bank.heap_free = 55 * 4096 + 2 * 28 * 64;
  bank.heap_rest = 2 * 4096 - 4 * 28 * 64;
  return arena;
}

}  // namespace baton::inspect::testing

#endif  // TESTS_SUPERVISOR_INSPECT_KNOWN_ARENA_H_
