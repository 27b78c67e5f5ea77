// Learns at once when a worker's threads die, from the robust locks that they hold: the kernel
// marks and wakes such a lock while it tears the thread down, long before the process is gone and
// its pidfd tells (get_robust_list(2)).
//
// The kernel wakes one of those who wait for a lock. Each watcher that it wakes wakes the others,
// so that a former heir which has not forgotten the owner yet keeps the death from nobody. One that
// is stopped cannot: then the process's end tells the heir.
#ifndef SUPERVISOR_DRIVER_ENGINE_DEATH_WATCHER_H_
#define SUPERVISOR_DRIVER_ENGINE_DEATH_WATCHER_H_

#include <linux/futex.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/arena/arena.h"

namespace baton::driver_process {

// One thread that sleeps on one lock of each watched worker: the worker library holds one.
// Thread-safe.
class DeathWatcher {
 public:
  // Called on the watcher's thread.
  using Callback = std::function<void(uint32_t slot, uint64_t worker_id)>;

  // `arena` outlives it. `realtime_priority` of its thread; 0: none. `on_death`: all locks that the
  // worker held are marked, and no watched worker of its process holds one. `on_mark`, if there is
  // one, comes after it, and once: a lock of the worker is marked. Its process may live on.
  DeathWatcher(const arena::Arena* arena, int realtime_priority, Callback on_death,
               Callback on_mark = nullptr);
  ~DeathWatcher();

  // A thread of the worker in the slot that held a lock is dead.
  static bool IsMarked(const arena::Arena& arena, uint32_t slot);
  // Every thread of the worker in the slot that held a lock is dead.
  static bool IsDead(const arena::Arena& arena, uint32_t slot);

  // The worker holds the locks of its slot from now on, or is going to. `process`: its number, by
  // which workers of one process are known as such; 0: it has no others.
  void Watch(uint32_t slot, uint64_t worker_id, pid_t process = 0);
  void Forget(uint32_t slot);

 private:
  struct Watched {
    uint64_t worker_id = 0;  // 0: nobody is watched
    pid_t process = 0;
    uint32_t vain_wakes = 0;  // since Watch
    bool mark_told = false;
  };

  // The state of the locks of a slot.
  struct Look {
    bool marked = false;       // one of them
    bool held = false;         // likewise
    uint32_t* live = nullptr;  // one that is held, and will wake us at this value
    uint32_t value = 0;

    bool IsDeath() const;
  };
  using Looks = std::array<Look, arena::kMaxWorkers>;

  // Waits for these words: the first is changes_, the others belong to the slots beside them.
  struct WaitSet {
    std::array<futex_waitv, arena::kMaxWorkers + 1> words = {};
    std::array<uint32_t, arena::kMaxWorkers + 1> slots = {};
    uint32_t count = 0;
  };

  void Loop();
  void Wait(WaitSet* waits);
  void PassOn();
  Look Inspect(uint32_t slot) const;
  bool IsProcessAlive(uint32_t slot, const Looks& looks) const;
  void Notify();

  const arena::Arena* arena_;
  const int realtime_priority_;
  const Callback on_death_, on_mark_;
  std::mutex mutex_;
  std::vector<Watched> watched_;  // by slot; guarded by mutex_
  // The marked locks that the watcher waited for last. Only its thread uses them.
  std::array<uint32_t*, arena::kMaxWorkers> marked_ = {};
  uint32_t marked_count_ = 0;
  std::atomic<uint32_t> changes_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_DEATH_WATCHER_H_
