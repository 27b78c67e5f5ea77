// A worker of which nothing is believed: writes commit entries and work requests into an arena
// directly, right or wrong.
#ifndef TESTS_LIB_DRIVER_COMMIT_WRITER_H_
#define TESTS_LIB_DRIVER_COMMIT_WRITER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/arena/arena.h"

namespace baton::driver::testing {

// A valid shape, with the smallest completion log that it may have.
arena::Shape TestShape(uint32_t shards = 1, uint32_t connections = 4, uint32_t queue_depth = 8);

class CommitWriter {
 public:
  CommitWriter(const arena::Arena* arena, uint32_t shard) : arena_(arena), shard_(shard) {}

  // Writes into the bank of this epoch from now on, from its start.
  void Begin(uint64_t epoch);

  // Entries of the open transaction; each can be changed until Publish.
  arena::CommitEntry& Add(arena::CommitKind kind);
  std::vector<arena::CommitEntry>& open() { return entries_; }
  arena::CommitEntry& Connection(uint32_t connection);  // as it was committed: changes nothing
  CommitWriter& Acknowledge(uint64_t completions);
  CommitWriter& AcknowledgeWith(uint32_t connection, uint64_t completions);  // in its entry
  CommitWriter& Accept(uint32_t connection, uint32_t target_shard, std::string_view data = {});
  CommitWriter& Reject(uint32_t connection, std::string_view data = {});
  CommitWriter& Disconnect(uint32_t connection);
  CommitWriter& Release();
  CommitWriter& ShardState(std::string_view state, uint32_t version);
  CommitWriter& ConnectionState(uint32_t connection, std::string_view state, uint32_t version);
  // Stages one more request of this connection: `length` bytes at `offset` of the buffers.
  arena::WorkRequest& Receive(uint32_t connection, uint64_t offset, uint32_t length);
  arena::WorkRequest& Send(uint32_t connection, uint64_t offset, uint32_t length);
  // Names this slot for a shared receive, too.
  arena::WorkRequest& SharedReceive(uint16_t slot, uint64_t offset, uint32_t length);
  // Lets this block begin at this page of the heap, too.
  CommitWriter& Heap(uint32_t page, const arena::HeapBlock& block);

  void Write();    // the entries, without the tail
  void Publish();  // ends the transaction, writes it, and moves the tail

  uint64_t tail() const { return tail_; }

 private:
  arena::CommitEntry& EntryOf(uint32_t connection);
  arena::WorkRequest& Stage(arena::WorkRequest* request, uint64_t offset, uint32_t length);

  const arena::Arena* arena_;
  const uint32_t shard_;
  uint64_t epoch_ = 0;
  uint64_t tail_ = 0;
  std::vector<arena::CommitEntry> entries_;
};

}  // namespace baton::driver::testing

#endif  // TESTS_LIB_DRIVER_COMMIT_WRITER_H_
