#include "lib/driver/completion_log.h"

#include <cstddef>
#include <cstring>

namespace baton::driver {

void CompletionLog::Clear() { arena::StoreRelaxed(slot(tail_).wr_id, arena::kInvalidWrId); }

void CompletionLog::FindTail() {
  const uint64_t unacknowledged = tail_ - arena::LoadRelaxed(record_->acknowledged);
  if (unacknowledged > slot_count_) return Break("more was published than it holds");
  for (uint64_t room = slot_count_ - unacknowledged; room > 1; --room) {
    if (slot(tail_).wr_id == arena::kInvalidWrId) break;
    ++tail_;
  }
}

// What is appended from now on goes nowhere.
void CompletionLog::Break(const char* why) {
  static thread_local arena::CompletionEntry nowhere;
  broken_ = why;
  slots_ = &nowhere;
  slot_count_ = 1;
}

void CompletionLog::Append(const arena::CompletionEntry& entry) {
  constexpr size_t kBody = offsetof(arena::CompletionEntry, tag);
  std::memcpy(reinterpret_cast<uint8_t*>(&Next()) + kBody,
              reinterpret_cast<const uint8_t*>(&entry) + kBody, sizeof(entry) - kBody);
  Append(entry.wr_id);
}

bool CompletionLog::Publish() {
  if (record_->completion_tail == tail_ || broken_ != nullptr) return false;
  BATON_CRASH_POINT("driver-before-publish");
  arena::StoreRelease(record_->completion_tail, tail_);
  BATON_CRASH_POINT("driver-published");
  return true;
}

}  // namespace baton::driver
