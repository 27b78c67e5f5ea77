#include "lib/driver/completion_log.h"

#include <cstddef>
#include <cstring>

namespace baton::driver {

void CompletionLog::Clear() { arena::StoreRelaxed(slot(tail_).wr_id, arena::kInvalidWrId); }

void CompletionLog::FindTail() {
  const uint64_t limit = record_->acknowledged + slot_count_ - 1;
  while (tail_ < limit && slot(tail_).wr_id != arena::kInvalidWrId) ++tail_;
}

void CompletionLog::Append(const arena::CompletionEntry& entry) {
  constexpr size_t kBody = offsetof(arena::CompletionEntry, tag);
  std::memcpy(reinterpret_cast<uint8_t*>(&Next()) + kBody,
              reinterpret_cast<const uint8_t*>(&entry) + kBody, sizeof(entry) - kBody);
  Append(entry.wr_id);
}

bool CompletionLog::Publish() {
  if (record_->completion_tail == tail_) return false;
  BATON_CRASH_POINT("driver-before-publish");
  arena::StoreRelease(record_->completion_tail, tail_);
  BATON_CRASH_POINT("driver-published");
  return true;
}

}  // namespace baton::driver
