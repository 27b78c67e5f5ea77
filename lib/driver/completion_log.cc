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

void CompletionLog::Break(const char* why) {
  if (broken_ == nullptr) broken_ = why;
  slot_count_ = 0;
}

bool CompletionLog::Append(const arena::CompletionEntry& entry) {
  constexpr size_t kBody = offsetof(arena::CompletionEntry, tag);
  arena::CompletionEntry* const next = Next();
  if (next == nullptr) return false;
  std::memcpy(reinterpret_cast<uint8_t*>(next) + kBody,
              reinterpret_cast<const uint8_t*>(&entry) + kBody, sizeof(entry) - kBody);
  Append(entry.wr_id);
  return true;
}

bool CompletionLog::Publish() {
  if (record_->completion_tail == tail_ || broken_ != nullptr || held_) return false;
  BATON_CRASH_POINT("driver-before-publish");
  arena::StoreRelease(record_->completion_tail, tail_);
  BATON_CRASH_POINT("driver-published");
  return true;
}

}  // namespace baton::driver
