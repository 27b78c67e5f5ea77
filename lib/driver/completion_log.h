// The driver's end of a shard's completion log.
#ifndef LIB_DRIVER_COMPLETION_LOG_H_
#define LIB_DRIVER_COMPLETION_LOG_H_

#include <cstdint>

#include "lib/arena/arena.h"

namespace baton::driver {

// Appends are visible to the owner after Publish, and to a successor of this driver at once. The
// log cannot overflow: it holds everything that the logs of all connections can have outstanding
// (arena::RequiredCompletionEntries).
class CompletionLog {
 public:
  CompletionLog(const arena::Arena& arena, uint32_t shard)
      : arena_(&arena), shard_(shard), tail_(arena.shard(shard).completion_tail) {}

  // For a log that nothing was appended to.
  void Clear();
  // For what another driver left: its appends count whether they were published or not.
  void FindTail();
  uint64_t tail() const { return tail_; }

  void Append(const arena::CompletionEntry& entry);

  // Returns whether anything was appended since the last call.
  bool Publish();

 private:
  const arena::Arena* arena_;
  uint32_t shard_;
  uint64_t tail_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_COMPLETION_LOG_H_
