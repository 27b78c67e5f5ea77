// How the simulated service uses its shards' heaps, and what it expects of them: that what its
// state names is allocated, as it was written, and that nothing else is.
#ifndef TESTS_SIMULATION_HEAP_USER_H_
#define TESTS_SIMULATION_HEAP_USER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/context.h"
#include "tests/simulation/protocol.h"
#include "worker/worker.h"

namespace baton::simulation {

// Where the service has no heaps, nothing happens, and no die is thrown.
class HeapUser {
 public:
  HeapUser(Context* context, Checker* checker, const arena::Arena* arena)
      : context_(context), checker_(checker), arena_(arena), shards_(arena->shape().shards) {}

  bool enabled() const { return arena_->shape().heap_pages != 0; }
  // Whether an offset in the buffers is in a heap.
  bool IsInHeap(uint64_t offset) const { return offset >= arena::HeapOffset(arena_->shape(), 0); }

  void OnAdopt(Shard& shard);
  // Returns what the shard's state has to say, behind ShardTotals.
  std::string State(Shard& shard);
  // Allocates, keeps and frees, or not. Returns true if the shard's state changes with it.
  bool Act(Shard& shard);
  // REQUIRES: nothing is staged.
  void ActAndAbandon(Shard& shard);

  // Returns memory for a message, or nothing: then another buffer has to do. It is to be given
  // back in the same transaction, when it is part of a work request.
  std::optional<Buffer> TakeMessage(Shard& shard);
  void GiveMessage(Shard& shard, const Buffer& message);

 private:
  struct Owned {
    uint64_t epoch = 0;  // in which this is so
    std::vector<HeapObject> kept, scratch;
  };

  Owned& Of(Shard& shard);
  bool Change(Shard& shard, Owned& owned);
  bool Allocate(Shard& shard, Owned& owned, bool kept);
  bool Keep(Shard& shard, Owned& owned);
  bool Free(Shard& shard, std::vector<HeapObject>& from);
  absl::StatusOr<Buffer> Take(Shard& shard, uint32_t length, bool kept);
  bool Done(const absl::Status& status, const char* what);
  void Verify(Shard& shard, const Owned& owned);
  void VerifyTotals(Shard& shard);
  void Write(Shard& shard, const HeapObject& object);
  void VerifyContents(Shard& shard, const HeapObject& object);
  Buffer BufferOf(const Shard& shard, const HeapObject& object) const {
    return {arena::HeapOffset(arena_->shape(), shard.index()) + object.offset, object.length};
  }

  Context* const context_;
  Checker* const checker_;
  const arena::Arena* const arena_;
  std::vector<Owned> shards_;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_HEAP_USER_H_
