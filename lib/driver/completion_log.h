// The driver's end of a shard's completion log.
#ifndef LIB_DRIVER_COMPLETION_LOG_H_
#define LIB_DRIVER_COMPLETION_LOG_H_

#include <cstdint>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/fetch.h"
#include "lib/base/crash_point.h"

namespace baton::driver {

// Appends are visible to the owner after Publish, and to a successor of this driver at once. The
// log cannot overflow: it holds everything that the logs of all connections can have outstanding
// (arena::RequiredCompletionEntries).
//
// Drivers of a native service can write each other's. One that says what cannot be is broken:
// nothing is appended, or published, any more, and its driver changes nothing for which there is no
// entry.
class CompletionLog {
 public:
  CompletionLog(const arena::Arena& arena, uint32_t shard)
      : record_(&arena.shard(shard)),
        slots_(&arena.completion(shard, 0)),
        slot_count_(arena.shape().completion_log_entries),
        tail_(record_->completion_tail) {}

  // For a log that nothing was appended to.
  void Clear();
  // For what another driver left: its appends count whether they were published or not.
  void FindTail();
  uint64_t tail() const { return tail_; }
  // The first entry that is not acknowledged. tail(): none is, or it cannot be that one.
  uint64_t oldest() const {
    const uint64_t acknowledged = arena::LoadRelaxed(record_->acknowledged);
    return tail_ - acknowledged <= slot_count_ ? acknowledged : tail_;
  }

  // Why it is broken; nullptr: it is not.
  const char* broken() const { return broken_; }
  void Break(const char* why);

  // Whether it is not broken.
  [[nodiscard]] bool Append(const arena::CompletionEntry& entry);

  // Without a copy: the slot behind the tail, all of which but the wr_id is filled, and then
  // appended with its wr_id. nullptr: it is broken, maybe because it is full.
  arena::CompletionEntry* Next() {
    if (tail_ - record_->acknowledged >= slot_count_) [[unlikely]] {
      Break("it is full of what was not acknowledged");
      return nullptr;
    }
    return &slot(tail_);
  }
  void Append(uint64_t wr_id) {
    BATON_CRASH_POINT("driver-entry-filled");
    arena::CompletionEntry& next = slot(tail_);
    arena::CompletionEntry& behind = slot(tail_ + 1);
    // The slot at the tail has had no wr_id since the append before. The slot behind says that
    // nothing was filled there, before this one says that it was.
    arena::StoreRelaxed(behind.wr_id, arena::kInvalidWrId);
    // A slot is whole once it has its wr_id.
    arena::StoreRelease(next.wr_id, wr_id);
    ++tail_;
    // Its owner has read it: it is in another processor's cache.
    arena::FetchToWrite(&slot(tail_ + kFetchAhead));
    BATON_CRASH_POINT("driver-entry-whole");
  }

  // Returns whether anything was appended since the last call.
  bool Publish();

 private:
  static constexpr uint64_t kFetchAhead = 8;

  arena::CompletionEntry& slot(uint64_t index) const { return slots_[index & (slot_count_ - 1)]; }

  arena::ShardRecord* record_;
  arena::CompletionEntry* slots_;
  uint32_t slot_count_;  // a power of two; of a broken one there are none
  uint64_t tail_;
  const char* broken_ = nullptr;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_COMPLETION_LOG_H_
