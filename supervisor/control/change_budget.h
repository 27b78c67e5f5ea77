// Bounds how often one caller may ask for a change: each is on record, and a record that is filled
// without a pause forgets what was before.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_CHANGE_BUDGET_H_
#define SUPERVISOR_CONTROL_CHANGE_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "lib/waiting/token_bucket.h"

namespace baton {

class ChangeBudget {
 public:
  static constexpr uint32_t kBurst = 1000;
  static constexpr uint32_t kPerSecond = 2;

  struct Verdict {
    bool allowed = false;
    // More than 0: so many of this caller's were not allowed, and it is time to put that on record.
    uint64_t to_record = 0;
  };

  Verdict Take(const std::string& caller, uint64_t now_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Caller& one = Find(caller, now_ns);
    Verdict verdict;
    verdict.allowed = one.changes.TryTake(now_ns);
    one.refused += !verdict.allowed;
    if (one.refused > 0 && (one.recorded_ns == 0 || now_ns - one.recorded_ns >= kRecordPauseNs)) {
      verdict.to_record = one.refused;
      one.refused = 0;
      one.recorded_ns = now_ns;
    }
    return verdict;
  }

 private:
  static constexpr size_t kMaxCallers = 256;
  static constexpr uint64_t kRecordPauseNs = 60'000'000'000;

  struct Caller {
    TokenBucket changes;
    uint64_t refused = 0;      // that are not on record yet
    uint64_t recorded_ns = 0;  // 0: never
  };

  // One of many callers shares what the others that find no place have.
  Caller& Find(const std::string& name, uint64_t now_ns) {
    const auto found = callers_.find(name);
    if (found != callers_.end()) return found->second;
    if (callers_.size() >= kMaxCallers) {
      for (auto entry = callers_.begin(); entry != callers_.end();) {
        Caller& caller = entry->second;
        const bool is_as_new = caller.changes.IsFull(now_ns) && caller.refused == 0;
        entry = is_as_new ? callers_.erase(entry) : std::next(entry);
      }
    }
    const std::string place = callers_.size() < kMaxCallers ? name : "others";
    return callers_.try_emplace(place, Caller{TokenBucket(kPerSecond, kBurst, now_ns)})
        .first->second;
  }

  std::mutex mutex_;
  std::map<std::string, Caller> callers_;  // guarded by mutex_
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CHANGE_BUDGET_H_
