// The driver's end of a shard's completion log.
#ifndef LIB_DRIVER_COMPLETION_LOG_H_
#define LIB_DRIVER_COMPLETION_LOG_H_

#include <cstdint>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"

namespace baton::driver {

// The owner sees appended entries after Publish(). A successor of this driver sees them at once.
// The log cannot overflow: it holds everything that the logs of all connections can have
// outstanding (arena::RequiredCompletionEntries).
//
// Drivers of a native service can write each other's logs. A log whose memory is inconsistent is
// broken: nothing is appended or published any more, and its driver makes no change that needs an
// entry.
class CompletionLog {
 public:
  CompletionLog(const arena::Arena& arena, uint32_t shard)
      : record_(&arena.shard(shard)),
        slots_(&arena.completion(shard, 0)),
        slot_count_(arena.shape().completion_log_entries),
        mask_(slot_count_ - 1),
        tail_(record_->completion_tail) {}

  // Initialises a log that nothing was appended to.
  void Clear();
  // Takes over another driver's log. All its entries count, whether published or not.
  void FindTail();
  uint64_t tail() const { return tail_; }
  // Returns the first entry that is not acknowledged, or tail() if there is none or the record is
  // inconsistent.
  uint64_t oldest() const {
    const uint64_t acknowledged = arena::LoadRelaxed(record_->acknowledged);
    return tail_ - acknowledged <= slot_count_ ? acknowledged : tail_;
  }

  // Names what the driver is at (arena::ShardRecord::at).
  void SetAt(uint32_t at) {
    arena::StoreRelaxed(record_->at, at);
    arena::OrderForCrash();
  }

  // Returns why the log is broken, or nullptr.
  const char* broken() const { return broken_; }
  void Break(const char* why);

  // Returns false if the log is broken.
  [[nodiscard]] bool Append(const arena::CompletionEntry& entry);

  // Appends without a copy: the caller fills all of the slot at the tail but its wr_id, and then
  // calls Append(wr_id). nullptr: the log is broken, possibly because it is full.
  arena::CompletionEntry* Next() {
    if (tail_ - record_->acknowledged >= slot_count_) [[unlikely]] {
      Break("it is full of what was not acknowledged");
      return nullptr;
    }
    return &slot(tail_);
  }
  void Append(uint64_t wr_id) {
    // A slot is complete once it has its wr_id. The previous append has cleared the wr_id of the
    // slot at the tail. This one clears that of the next slot before it sets its own. It also
    // fetches a later slot, which the owner's processor has read and cached.
    Run run(*this);
    run.Append(wr_id);
    End(run);
  }

  // Next() and Append() for consecutive entries, with the log's fields cached. REQUIRES: until
  // End() nothing else is appended, and nothing is acknowledged.
  class Run {
   public:
    explicit Run(const CompletionLog& log)
        : slots_(log.slots_),
          mask_(log.mask_),
          tail_(log.tail_),
          end_(log.tail_ + log.Room()),
          next_(&slots_[tail_ & mask_]) {}

    // Null: the log is full or broken.
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

  // Shows appended entries to the owner. Returns false if there are no new ones, or the log is
  // broken or held.
  bool Publish();
  // While it is held, nothing is shown: a successor of this driver finds the entries all the same.
  void Hold(bool held) { held_ = held; }

 private:
  static constexpr uint64_t kFetchAhead = 7;  // beyond the next one

  // Also returns 0 if another process has written a cursor ahead of the tail.
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
  bool held_ = false;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_COMPLETION_LOG_H_
