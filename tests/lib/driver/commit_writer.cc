#include "tests/lib/driver/commit_writer.h"

#include <algorithm>
#include <bit>

#include "lib/arena/atomic_access.h"

namespace baton::driver::testing {

using arena::CommitEntry;
using arena::CommitKind;

arena::Shape TestShape(uint32_t shards, uint32_t connections, uint32_t queue_depth) {
  arena::Shape shape = {};
  shape.shards = shards;
  shape.connections = connections;
  shape.send_queue_depth = shape.receive_queue_depth = queue_depth;
  shape.connection_state_bytes = 64;
  shape.shard_state_bytes = 128;
  shape.workers = 4;
  shape.buffer_bytes = 1 << 16;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

void CommitWriter::Begin(uint64_t epoch) {
  epoch_ = epoch;
  tail_ = 0;
  entries_.clear();
}

CommitEntry& CommitWriter::Add(CommitKind kind) {
  CommitEntry entry = {};
  entry.kind = static_cast<uint8_t>(kind);
  entries_.push_back(entry);
  return entries_.back();
}

CommitEntry& CommitWriter::Connection(uint32_t connection) {
  const arena::ConnectionRecord& record = arena_->connection(connection);
  CommitEntry& entry = Add(CommitKind::kConnection);
  entry.connection = connection;
  entry.generation = record.generation;
  entry.state_slot = arena::kKeepState;
  entry.send_end = record.send.committed;
  entry.receive_end = record.receive.committed;
  return entry;
}

CommitEntry& CommitWriter::EntryOf(uint32_t connection) {
  for (CommitEntry& entry : entries_) {
    if (CommitKind(entry.kind) == CommitKind::kConnection && entry.connection == connection) {
      return entry;
    }
  }
  return Connection(connection);
}

CommitWriter& CommitWriter::Acknowledge(uint64_t completions) {
  Add(CommitKind::kAcknowledge).acknowledged = completions;
  return *this;
}

CommitWriter& CommitWriter::AcknowledgeWith(uint32_t connection, uint64_t completions) {
  CommitEntry& entry = EntryOf(connection);
  entry.flags |= arena::kCommitAcknowledges;
  entry.acknowledged = completions;
  return *this;
}

CommitWriter& CommitWriter::Accept(uint32_t connection, uint32_t target_shard,
                                   std::string_view data) {
  std::copy(data.begin(), data.end(), arena_->private_data(connection));
  CommitEntry& entry = Add(CommitKind::kAccept);
  entry.connection = connection;
  entry.generation = arena_->connection(connection).generation;
  entry.target_shard = target_shard;
  entry.private_data_length = static_cast<uint32_t>(data.size());
  return *this;
}

CommitWriter& CommitWriter::Reject(uint32_t connection, std::string_view data) {
  std::copy(data.begin(), data.end(), arena_->private_data(connection));
  CommitEntry& entry = Add(CommitKind::kReject);
  entry.connection = connection;
  entry.generation = arena_->connection(connection).generation;
  entry.private_data_length = static_cast<uint32_t>(data.size());
  return *this;
}

CommitWriter& CommitWriter::Disconnect(uint32_t connection) {
  CommitEntry& entry = Add(CommitKind::kDisconnect);
  entry.connection = connection;
  entry.generation = arena_->connection(connection).generation;
  return *this;
}

CommitWriter& CommitWriter::Release() {
  Add(CommitKind::kRelease);
  return *this;
}

CommitWriter& CommitWriter::ShardState(std::string_view state, uint32_t version) {
  const uint32_t slot = 1 - arena_->shard(shard_).state_slot;
  std::copy(state.begin(), state.end(), arena_->shard_state(shard_, slot));
  CommitEntry& entry = Add(CommitKind::kShardState);
  entry.state_slot = slot;
  entry.state_length = static_cast<uint32_t>(state.size());
  entry.state_version = version;
  return *this;
}

CommitWriter& CommitWriter::ConnectionState(uint32_t connection, std::string_view state,
                                            uint32_t version) {
  const uint32_t slot = 1 - arena_->connection(connection).state_slot;
  std::copy(state.begin(), state.end(), arena_->connection_state(connection, slot));
  CommitEntry& entry = EntryOf(connection);
  entry.state_slot = slot;
  entry.state_length = static_cast<uint32_t>(state.size());
  entry.state_version = version;
  return *this;
}

arena::WorkRequest& CommitWriter::Stage(arena::WorkRequest* request, uint64_t offset,
                                        uint32_t length) {
  *request = {};
  request->sge_count = 1;
  request->sges[0] = {offset, length, 0};
  return *request;
}

arena::WorkRequest& CommitWriter::Receive(uint32_t connection, uint64_t offset, uint32_t length) {
  CommitEntry& entry = EntryOf(connection);
  return Stage(&arena_->receive_request(connection, entry.receive_end++), offset, length);
}

arena::WorkRequest& CommitWriter::Send(uint32_t connection, uint64_t offset, uint32_t length) {
  CommitEntry& entry = EntryOf(connection);
  return Stage(&arena_->send_request(connection, entry.send_end++), offset, length);
}

arena::WorkRequest& CommitWriter::SharedReceive(uint16_t slot, uint64_t offset, uint32_t length) {
  const auto full = [](const CommitEntry& entry) {
    return CommitKind(entry.kind) != CommitKind::kSharedReceives ||
           std::bit_cast<arena::SharedReceivesEntry>(entry).count == arena::kSharedReceivesPerEntry;
  };
  if (entries_.empty() || full(entries_.back())) Add(CommitKind::kSharedReceives);
  auto named = std::bit_cast<arena::SharedReceivesEntry>(entries_.back());
  named.slots[named.count++] = slot;
  entries_.back() = std::bit_cast<CommitEntry>(named);
  return Stage(&arena_->shared_receive_request(shard_, slot), offset, length);
}

CommitWriter& CommitWriter::Heap(uint32_t page, const arena::HeapBlock& block) {
  const auto full = [](const CommitEntry& entry) {
    return CommitKind(entry.kind) != CommitKind::kHeap ||
           std::bit_cast<arena::HeapEntry>(entry).count >= arena::kHeapChangesPerEntry;
  };
  if (entries_.empty() || full(entries_.back())) Add(CommitKind::kHeap);
  auto heap = std::bit_cast<arena::HeapEntry>(entries_.back());
  heap.changes[heap.count++] = arena::ChangeOf(page, block);
  entries_.back() = std::bit_cast<CommitEntry>(heap);
  return *this;
}

void CommitWriter::Write() {
  for (const CommitEntry& entry : entries_) arena_->commit_entry(shard_, epoch_, tail_++) = entry;
  entries_.clear();
}

void CommitWriter::Publish() {
  if (!entries_.empty()) entries_.back().flags |= arena::kCommitLast;
  Write();
  arena::StoreRelease(arena_->bank(shard_, epoch_).tail, arena::PackCursor(epoch_, tail_));
}

}  // namespace baton::driver::testing
