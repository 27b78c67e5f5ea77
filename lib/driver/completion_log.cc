#include "lib/driver/completion_log.h"

#include <cstddef>
#include <cstring>

#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/base/crash_point.h"

namespace baton::driver {

void CompletionLog::Clear() {
  arena::StoreRelaxed(arena_->completion(shard_, tail_).wr_id, arena::kInvalidWrId);
}

void CompletionLog::FindTail() {
  const uint64_t limit =
      arena_->shard(shard_).acknowledged + arena_->shape().completion_log_entries - 1;
  while (tail_ < limit && arena_->completion(shard_, tail_).wr_id != arena::kInvalidWrId) ++tail_;
}

void CompletionLog::Append(const arena::CompletionEntry& entry) {
  BATON_CHECK(tail_ - arena_->shard(shard_).acknowledged < arena_->shape().completion_log_entries);
  // The slot behind says that nothing was filled there, before this one says that it was.
  arena::StoreRelaxed(arena_->completion(shard_, tail_ + 1).wr_id, arena::kInvalidWrId);
  // This one has had none since the append before.
  arena::CompletionEntry& slot = arena_->completion(shard_, tail_);
  constexpr size_t kBody = offsetof(arena::CompletionEntry, tag);
  std::memcpy(reinterpret_cast<uint8_t*>(&slot) + kBody,
              reinterpret_cast<const uint8_t*>(&entry) + kBody, sizeof(entry) - kBody);
  BATON_CRASH_POINT("driver-entry-filled");
  // A slot is whole once it has its wr_id.
  arena::StoreRelease(slot.wr_id, entry.wr_id);
  ++tail_;
  BATON_CRASH_POINT("driver-entry-whole");
}

bool CompletionLog::Publish() {
  uint64_t& published = arena_->shard(shard_).completion_tail;
  if (published == tail_) return false;
  BATON_CRASH_POINT("driver-before-publish");
  arena::StoreRelease(published, tail_);
  BATON_CRASH_POINT("driver-published");
  return true;
}

}  // namespace baton::driver
