#include "supervisor/keeper/death_watcher.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>

#include "lib/arena/atomic_access.h"
#include "lib/base/realtime.h"

namespace baton::keeper {
namespace {

static_assert(arena::kMaxWorkers + 1 <= FUTEX_WAITV_MAX);

}  // namespace

DeathWatcher::DeathWatcher(const arena::Arena* arena, int realtime_priority, Callback on_death)
    : arena_(arena),
      realtime_priority_(realtime_priority),
      on_death_(std::move(on_death)),
      watched_(arena->shape().workers, 0) {
  thread_ = std::thread(&DeathWatcher::Loop, this);
}

DeathWatcher::~DeathWatcher() {
  stop_.store(true);
  Notify();
  thread_.join();
}

void DeathWatcher::Watch(uint32_t slot, uint64_t worker_id) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    watched_[slot] = worker_id;
  }
  Notify();
}

void DeathWatcher::Forget(uint32_t slot) { Watch(slot, 0); }

void DeathWatcher::Notify() {
  changes_.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&changes_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

// Finds a lock whose holder lives, and sees to it that the kernel will wake us: it wakes only locks
// that say somebody waits.
DeathWatcher::Locks DeathWatcher::Inspect(uint32_t slot, uint32_t** live, uint32_t* value) const {
  bool any_dead = false;
  for (arena::ThreadLock& lock : arena_->worker(slot).thread_locks) {
    std::atomic_ref<uint32_t> word(lock.futex);
    uint32_t seen = word.load();
    for (;;) {
      if (seen & FUTEX_OWNER_DIED) {
        any_dead = true;
        break;
      }
      if ((seen & FUTEX_TID_MASK) == 0) break;  // not held
      if ((seen & FUTEX_WAITERS) || word.compare_exchange_weak(seen, seen | FUTEX_WAITERS)) {
        *live = &lock.futex;
        *value = seen | FUTEX_WAITERS;
        return Locks::kHeld;
      }
    }
  }
  return any_dead ? Locks::kDead : Locks::kNone;
}

void DeathWatcher::Loop() {
  // The engine reports when it cannot be had.
  if (realtime_priority_ > 0) UseRealtimePriority(realtime_priority_).IgnoreError();
  std::array<futex_waitv, arena::kMaxWorkers + 1> waits = {};
  while (!stop_.load()) {
    const uint32_t changes = changes_.load();
    uint32_t count = 1;
    waits[0] = {changes, reinterpret_cast<uint64_t>(&changes_), FUTEX_32 | FUTEX_PRIVATE_FLAG, 0};
    std::vector<std::pair<uint32_t, uint64_t>> dead;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (uint32_t slot = 0; slot < watched_.size(); ++slot) {
        if (watched_[slot] == 0) continue;
        uint32_t* live = nullptr;
        uint32_t value = 0;
        switch (Inspect(slot, &live, &value)) {
          case Locks::kHeld:
            waits[count++] = {value, reinterpret_cast<uint64_t>(live), FUTEX_32, 0};
            break;
          case Locks::kDead:
            dead.emplace_back(slot, watched_[slot]);
            watched_[slot] = 0;
            break;
          case Locks::kNone:
            break;  // gave its locks up: only the pidfd tells
        }
      }
    }
    for (const auto& [slot, id] : dead) on_death_(slot, id);
    if (!dead.empty()) continue;
    syscall(SYS_futex_waitv, waits.data(), count, 0, nullptr, 0);
  }
}

}  // namespace baton::keeper
