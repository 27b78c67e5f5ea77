// Notices at once that a worker's threads die, by the robust locks that they hold. The kernel marks
// such a lock and wakes a waiter while it tears the thread down (get_robust_list(2)), long before
// the process is gone and its pidfd becomes readable.
//
// The kernel wakes only one waiter of a lock, which may be a former heir that has not forgotten the
// owner yet. So each watcher that it wakes wakes the others. If a stopped watcher cannot do that,
// the heir learns of the death by the end of the process.
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

  // `arena` outlives it. `realtime_priority`: of its thread; 0: none. Calls `on_death` when all
  // locks that the worker held are marked, and no watched worker of its process holds one. Calls
  // `on_mark`, unless it is null, once when a lock of the worker is marked: its process may live
  // on. If both are due, `on_death` comes first.
  DeathWatcher(const arena::Arena* arena, int realtime_priority, Callback on_death,
               Callback on_mark = nullptr);
  ~DeathWatcher();

  // Returns whether a thread of the worker in the slot died with a lock held.
  static bool IsMarked(const arena::Arena& arena, uint32_t slot);
  // Returns whether such a thread died, and no other thread holds a lock of the slot.
  static bool IsDead(const arena::Arena& arena, uint32_t slot);

  // Starts to watch the worker, which holds the locks of its slot or is going to. `process`: its
  // pid, which all workers of a process have in common; 0: it has no others.
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
    bool marked = false;       // at least one
    bool held = false;         // at least one
    uint32_t* live = nullptr;  // one that is held: the watcher waits while it has this value
    uint32_t value = 0;

    bool IsDeath() const;
  };
  using Looks = std::array<Look, arena::kMaxWorkers>;

  // The words to wait for. The first is changes_; each other is a lock of its element in `slots`.
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
  void Wake();

  const arena::Arena* arena_;
  const int realtime_priority_;
  const Callback on_death_, on_mark_;
  std::mutex mutex_;
  std::vector<Watched> watched_;  // by slot; guarded by mutex_
  // The marked locks that the watcher waited for last. Only its thread uses them.
  std::array<uint32_t*, arena::kMaxWorkers> marked_ = {};
  uint32_t marked_count_ = 0;
  // Counts changes of watched_ in steps of kChange. kStop is set when the thread is to end.
  static constexpr uint32_t kStop = 1, kChange = 2;
  std::atomic<uint32_t> changes_{0};
  std::thread thread_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_DEATH_WATCHER_H_
