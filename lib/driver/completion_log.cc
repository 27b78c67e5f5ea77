#include "lib/driver/completion_log.h"

#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"

namespace baton::driver {

void CompletionLog::Append(const arena::CompletionEntry& entry) {
  BATON_CHECK(tail_ - arena_->shard(shard_).acknowledged < arena_->shape().completion_log_entries);
  arena::CompletionEntry& slot = arena_->completion(shard_, tail_);
  const uint64_t wr_id = entry.wr_id;
  slot = entry;
  // A slot is whole once it has its wr_id; the one after it says that nothing was filled there.
  arena::StoreRelease(slot.wr_id, wr_id);
  ++tail_;
  arena::StoreRelaxed(arena_->completion(shard_, tail_).wr_id, arena::kInvalidWrId);
}

bool CompletionLog::Publish() {
  uint64_t& published = arena_->shard(shard_).completion_tail;
  if (published == tail_) return false;
  arena::StoreRelease(published, tail_);
  return true;
}

}  // namespace baton::driver
