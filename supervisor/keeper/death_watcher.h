// Learns at once when a worker's threads die, from the robust locks that they hold: the kernel
// marks and wakes such a lock while it tears the thread down, long before the process is gone and
// its pidfd tells (get_robust_list(2)).
//
// The kernel wakes one of those who wait for a lock. Each watcher that it wakes wakes the others,
// so that a former heir which has not forgotten the owner yet keeps the death from nobody. One that
// is stopped cannot: then the process's end tells the heir.
#ifndef SUPERVISOR_KEEPER_DEATH_WATCHER_H_
#define SUPERVISOR_KEEPER_DEATH_WATCHER_H_

#include <linux/futex.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/arena/arena.h"

namespace baton::keeper {

// One thread that sleeps on one lock of each watched worker. Thread-safe.
class DeathWatcher {
 public:
  // Called on the watcher's thread when all locks that the worker held are marked.
  using Callback = std::function<void(uint32_t slot, uint64_t worker_id)>;

  // `arena` outlives it. `realtime_priority` of its thread; 0: none.
  DeathWatcher(const arena::Arena* arena, int realtime_priority, Callback on_death);
  ~DeathWatcher();

  // Every thread of the worker in the slot that held a lock is dead.
  static bool IsDead(const arena::Arena& arena, uint32_t slot);

  // The worker holds the locks of its slot from now on.
  void Watch(uint32_t slot, uint64_t worker_id);
  void Forget(uint32_t slot);

 private:
  enum class Locks { kHeld, kDead, kNone };

  // Waits for these words: the first is changes_, the others belong to the slots beside them.
  struct WaitSet {
    std::array<futex_waitv, arena::kMaxWorkers + 1> words = {};
    std::array<uint32_t, arena::kMaxWorkers + 1> slots = {};
    uint32_t count = 0;
  };

  void Loop();
  void Wait(WaitSet* waits);
  void PassOn();
  Locks Inspect(uint32_t slot, uint32_t** live, uint32_t* value) const;
  void Notify();

  const arena::Arena* arena_;
  const int realtime_priority_;
  Callback on_death_;
  std::mutex mutex_;
  std::vector<uint64_t> watched_;     // worker id by slot, 0: none; guarded by mutex_
  std::vector<uint32_t> vain_wakes_;  // by slot, since Watch; guarded by mutex_
  // Of the watcher's thread: the locks that it waited for last, and that are marked.
  std::array<uint32_t*, arena::kMaxWorkers> marked_ = {};
  uint32_t marked_count_ = 0;
  std::atomic<uint32_t> changes_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_DEATH_WATCHER_H_
