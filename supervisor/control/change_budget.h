// Bounds how often one caller may ask for a change: each is on record, and a record that is filled
// without a pause forgets what was before.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_CHANGE_BUDGET_H_
#define SUPERVISOR_CONTROL_CHANGE_BUDGET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

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
    one.Refill(now_ns);
    Verdict verdict;
    verdict.allowed = one.changes >= 1;
    if (verdict.allowed) {
      one.changes -= 1;
    } else {
      ++one.refused;
    }
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
    void Refill(uint64_t now_ns) {
      const double seconds = static_cast<double>(now_ns - last_ns) * 1e-9;
      changes = std::min<double>(kBurst, changes + seconds * kPerSecond);
      last_ns = now_ns;
    }
    double changes = kBurst;
    uint64_t last_ns = 0;
    uint64_t refused = 0;      // that are not on record yet
    uint64_t recorded_ns = 0;  // 0: never
  };

  // One of many callers shares what the others that find no place have.
  Caller& Find(const std::string& name, uint64_t now_ns) {
    const auto found = callers_.find(name);
    if (found != callers_.end()) return found->second;
    if (callers_.size() >= kMaxCallers) {
      for (auto& [known, caller] : callers_) caller.Refill(now_ns);
      std::erase_if(callers_, [](const auto& entry) {
        return entry.second.changes >= kBurst && entry.second.refused == 0;
      });
    }
    Caller& caller = callers_[callers_.size() < kMaxCallers ? name : "others"];
    if (caller.last_ns == 0) caller.last_ns = now_ns;
    return caller;
  }

  std::mutex mutex_;
  std::map<std::string, Caller> callers_;  // guarded by mutex_
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CHANGE_BUDGET_H_
