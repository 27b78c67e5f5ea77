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
        mask_(slot_count_ - 1),
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
    // The slot at the tail has had no wr_id since the append before. The slot behind says that
    // nothing was filled there, before this one says that it was: a slot is whole once it has its
    // wr_id. The owner has read the slot that is fetched: it is in another processor's cache.
    Run run(*this);
    run.Append(wr_id);
    End(run);
  }

  // Next and Append for entries one after the other, with what they look up at hand. Nothing else
  // is appended before End(), and nothing is acknowledged.
  class Run {
   public:
    explicit Run(const CompletionLog& log)
        : slots_(log.slots_),
          mask_(log.mask_),
          tail_(log.tail_),
          end_(log.tail_ + log.Room()),
          next_(&slots_[tail_ & mask_]) {}

    // Null: there is no room, or the log is broken.
    arena::CompletionEntry* Next() const { return tail_ < end_ ? next_ : nullptr; }
    void Append(uint64_t wr_id) {
      BATON_CRASH_POINT("driver-entry-filled");
      arena::CompletionEntry* const filled = next_;
      next_ = &slots_[++tail_ & mask_];
      arena::StoreRelaxed(next_->wr_id, arena::kInvalidWrId);
      arena::StoreRelease(filled->wr_id, wr_id);
      arena::FetchToWrite(&slots_[(tail_ + kFetchAhead) & mask_]);
      BATON_CRASH_POINT("driver-entry-whole");
    }
    uint64_t tail() const { return tail_; }

   private:
    arena::CompletionEntry* slots_;
    uint64_t mask_;
    uint64_t tail_;
    uint64_t end_;
    arena::CompletionEntry* next_;
  };
  void End(const Run& run) { tail_ = run.tail(); }

  // Returns whether anything was appended since the last call.
  bool Publish();

 private:
  static constexpr uint64_t kFetchAhead = 7;  // beyond the next one

  // 0 as well if another process says that more is acknowledged than was appended.
  uint64_t Room() const {
    const uint64_t used = tail_ - record_->acknowledged;
    return used < slot_count_ ? slot_count_ - used : 0;
  }
  arena::CompletionEntry& slot(uint64_t index) const { return slots_[index & mask_]; }

  arena::ShardRecord* record_;
  arena::CompletionEntry* slots_;
  uint64_t slot_count_;  // a power of two; 0 when the log is broken
  uint64_t mask_;
  uint64_t tail_;
  const char* broken_ = nullptr;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_COMPLETION_LOG_H_
