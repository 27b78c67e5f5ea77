#ifndef SUPERVISOR_CONTROL_REDEMPTIONS_H_
#define SUPERVISOR_CONTROL_REDEMPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace baton {

// Bounds how many tokens of one user wait at keepers for their answer. Thread-safe.
class Redemptions {
 public:
  static constexpr size_t kPerUid = 64;

  // False: that many wait already. True: End has to follow.
  bool Begin(uint32_t uid) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t& waiting = waiting_[uid];
    if (waiting == kPerUid) return false;
    ++waiting;
    return true;
  }

  void End(uint32_t uid) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = waiting_.find(uid);
    if (--entry->second == 0) waiting_.erase(entry);
  }

 private:
  std::mutex mutex_;
  std::map<uint32_t, size_t> waiting_;  // guarded by mutex_; without those that have none
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_REDEMPTIONS_H_
