#include "supervisor/driver/engine/death_watcher.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <iterator>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/process_limits.h"

namespace baton::driver_process {
namespace {

static_assert(arena::kMaxWorkers + 1 <= FUTEX_WAITV_MAX);

// Workers write the words. A correct worker changes a lock only to take it and to give it up. The
// watcher waits no more for a worker that wakes it more often than this; then the pidfd alone is
// sure to report the death.
constexpr uint32_t kVainWakes = 64;
constexpr int kMarkAttempts = 16;
constexpr useconds_t kPauseMicroseconds = 1000;

}  // namespace

DeathWatcher::DeathWatcher(const arena::Arena* arena, int realtime_priority, Callback on_death,
                           Callback on_mark)
    : arena_(arena),
      realtime_priority_(realtime_priority),
      on_death_(std::move(on_death)),
      on_mark_(std::move(on_mark)),
      watched_(arena->shape().workers) {
  thread_ = std::thread(&DeathWatcher::Loop, this);
}

DeathWatcher::~DeathWatcher() {
  changes_.fetch_or(kStop);
  Wake();
  thread_.join();
}

void DeathWatcher::Watch(uint32_t slot, uint64_t worker_id, pid_t process) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    watched_[slot] = {worker_id, process};
  }
  Notify();
}

void DeathWatcher::Forget(uint32_t slot) { Watch(slot, 0); }

void DeathWatcher::Notify() {
  changes_.fetch_add(kChange);
  Wake();
}

void DeathWatcher::Wake() {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&changes_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

bool DeathWatcher::Look::IsDeath() const { return marked && !held; }

bool DeathWatcher::IsMarked(const arena::Arena& arena, uint32_t slot) {
  const auto& locks = arena.worker(slot).thread_locks;
  return std::any_of(std::begin(locks), std::end(locks), [](const arena::ThreadLock& lock) {
    return (arena::LoadAcquire(lock.futex) & FUTEX_OWNER_DIED) != 0;
  });
}

bool DeathWatcher::IsDead(const arena::Arena& arena, uint32_t slot) {
  Look look;
  for (const arena::ThreadLock& lock : arena.worker(slot).thread_locks) {
    const uint32_t word = arena::LoadAcquire(lock.futex);
    if ((word & FUTEX_OWNER_DIED) != 0) {
      look.marked = true;
    } else if ((word & FUTEX_TID_MASK) != 0) {
      look.held = true;
    }
  }
  return look.IsDeath();
}

// Sets FUTEX_WAITERS in a held lock: otherwise the kernel wakes nobody when its holder dies.
DeathWatcher::Look DeathWatcher::Inspect(uint32_t slot) const {
  Look look;
  for (arena::ThreadLock& lock : arena_->worker(slot).thread_locks) {
    std::atomic_ref<uint32_t> word(lock.futex);
    uint32_t seen = word.load();
    for (int attempt = 0; attempt < kMarkAttempts; ++attempt) {
      if (seen & FUTEX_OWNER_DIED) {
        look.marked = true;
        break;
      }
      if ((seen & FUTEX_TID_MASK) == 0) break;  // not held
      look.held = true;
      if (look.live != nullptr) break;
      if ((seen & FUTEX_WAITERS) || word.compare_exchange_weak(seen, seen | FUTEX_WAITERS)) {
        look.live = &lock.futex;
        look.value = seen | FUTEX_WAITERS;
        break;
      }
    }
  }
  return look;
}

// Returns whether another worker of the same process holds a lock.
bool DeathWatcher::IsProcessAlive(uint32_t slot, const Looks& looks) const {
  const pid_t process = watched_[slot].process;
  for (uint32_t other = 0; process != 0 && other < watched_.size(); ++other) {
    if (watched_[other].worker_id != 0 && watched_[other].process == process && looks[other].held) {
      return true;
    }
  }
  return false;
}

void DeathWatcher::Loop() {
  // An error is ignored, because a brokered service's engine reports the same one.
  if (realtime_priority_ > 0) UseRealtimePriority(realtime_priority_).IgnoreError();
  WaitSet waits;
  // Allocates now, and not after a death: a thread's first allocation takes as long as all the
  // rest.
  std::vector<std::pair<uint32_t, uint64_t>> dead, marked;
  dead.reserve(watched_.size());
  marked.reserve(watched_.size());
  Looks looks;
  for (;;) {
    // One word says both, so no change is missed between this look and the wait.
    const uint32_t changes = changes_.load();
    if ((changes & kStop) != 0) break;
    waits.count = 1;
    waits.words[0] = {changes, reinterpret_cast<uint64_t>(&changes_), FUTEX_32 | FUTEX_PRIVATE_FLAG,
                      0};
    dead.clear();
    marked.clear();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (uint32_t slot = 0; slot < watched_.size(); ++slot) {
        Watched& watched = watched_[slot];
        if (watched.worker_id == 0) continue;
        const Look& look = looks[slot] = Inspect(slot);
        if (look.marked && !std::exchange(watched.mark_told, true)) {
          marked.emplace_back(slot, watched.worker_id);
        }
        if (look.live == nullptr || watched.vain_wakes > kVainWakes) continue;
        waits.slots[waits.count] = slot;
        waits.words[waits.count++] = {look.value, reinterpret_cast<uint64_t>(look.live), FUTEX_32,
                                      0};
      }
      // The pidfd alone reports the death of a worker that gave its locks up.
      for (uint32_t slot = 0; slot < watched_.size(); ++slot) {
        if (watched_[slot].worker_id == 0 || !looks[slot].IsDeath()) continue;
        if (IsProcessAlive(slot, looks)) continue;  // the last of its locks wakes us
        dead.emplace_back(slot, watched_[slot].worker_id);
        watched_[slot].worker_id = 0;
      }
    }
    for (const auto& [slot, id] : dead) on_death_(slot, id);
    PassOn();
    if (on_mark_) {
      for (const auto& [slot, id] : marked) on_mark_(slot, id);
    }
    if (!dead.empty()) continue;
    Wait(&waits);
  }
  PassOn();
}

// Wakes the other watchers of these locks, because the wake-up may have been meant for one of them.
void DeathWatcher::PassOn() {
  for (; marked_count_ > 0; --marked_count_) {
    syscall(SYS_futex, marked_[marked_count_ - 1], FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

// Returns when one of the words has changed. Counts the wake-ups of each worker, so that one that
// changes its words all the time cannot keep the watcher running.
void DeathWatcher::Wait(WaitSet* waits) {
  const long woken = syscall(SYS_futex_waitv, waits->words.data(), waits->count, 0, nullptr, 0);
  for (uint32_t i = 1; i < waits->count; ++i) {
    auto* const word = reinterpret_cast<uint32_t*>(waits->words[i].uaddr);
    if ((arena::LoadAcquire(*word) & FUTEX_OWNER_DIED) != 0) marked_[marked_count_++] = word;
  }
  if (changes_.load() != waits->words[0].val) return;
  bool explained = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (uint32_t i = 1; i < waits->count; ++i) {
      auto* const word = reinterpret_cast<uint32_t*>(waits->words[i].uaddr);
      const uint32_t value = arena::LoadRelaxed(*word);
      if (i != static_cast<uint32_t>(woken) && value == waits->words[i].val) continue;
      explained = true;
      if (!(value & FUTEX_OWNER_DIED)) ++watched_[waits->slots[i]].vain_wakes;
    }
  }
  if (!explained) usleep(kPauseMicroseconds);  // it changed back, or the kernel refuses
}

}  // namespace baton::driver_process
