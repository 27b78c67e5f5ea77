// The loop of a thread that drives queues: it turns while there is work, then looks, yields and
// sleeps. It also measures how busy the thread is.
#ifndef SUPERVISOR_DRIVER_ENGINE_TURN_LOOP_H_
#define SUPERVISOR_DRIVER_ENGINE_TURN_LOOP_H_

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/latency_histogram.h"
#include "lib/base/pauses.h"

namespace baton::driver_process {

// How busy the thread is. Thread-compatible.
struct EngineLoad {
  uint64_t busy_ns = 0;
  uint64_t turns = 0;  // that found something to do
  // Times the turns that ended an idle time or ran work of other threads, and one in 64 others.
  LatencyHistogram turn;
};

// The load of a loop as it measures it. `busy_ns` can be computed from it at any time.
struct TurnTimes {
  EngineLoad load;          // without busy_ns
  uint64_t started_ns = 0;  // 0: it has not started
  uint64_t idle_ns = 0;     // in all, before idle_since
  uint64_t idle_since = 0;  // 0: the thread is not idle

  EngineLoad At(uint64_t now) const {
    EngineLoad result = load;
    result.busy_ns = now - started_ns - idle_ns - (idle_since == 0 ? 0 : now - idle_since);
    return result;
  }
};

// `Body` has these methods:
//   bool Turn();              does what there is to do, in one pass; returns whether there was
//   bool TurnShards();        the part of Turn() that needs no system call to find work
//   uint32_t shard_count();
//   bool HasPosted();         other threads wait for the next turn, which is timed
//   int LongestSleepMs();     -1: as long as no signal comes
//   bool BeginSleep(); void AwaitSignal(int timeout_ms); void EndSleep();
template <typename Body>
class TurnLoop {
 public:
  // The pointers outlive it. `yield_microseconds`: the longest time that it yields before it
  // sleeps.
  TurnLoop(Body* body, TurnTimes* times, uint32_t yield_microseconds)
      : body_(*body), times_(*times), budget_(yield_microseconds) {}

  // Returns when `stop` is set.
  void Run(const std::atomic<bool>& stop) {
    times_.started_ns = MonotonicNanoseconds();
    while (!stop.load(std::memory_order_relaxed)) RunOnce();
  }

 private:
  // A busy thread times one turn in this many: reading a clock costs as much as a work request.
  static constexpr uint64_t kTimedTurns = 64;

  void RunOnce() {
    const bool idle = times_.idle_since != 0;
    const bool timed = idle || times_.load.turns % kTimedTurns == 0 || body_.HasPosted();
    const uint64_t start = timed ? MonotonicNanoseconds() : 0;
    const bool worked = body_.Turn();
    if (worked) ++times_.load.turns;
    if (worked && timed) {
      const uint64_t end = MonotonicNanoseconds();
      times_.load.turn.Record(end - start);
      if (idle) {
        budget_.NoteWait(end - times_.idle_since);
        EndIdle(start);
      }
    }
    if ((times_.idle_since == 0 && Glance(worked)) || worked) return;
    const uint64_t now = idle ? start : MonotonicNanoseconds();
    if (times_.idle_since == 0) times_.idle_since = now;
    if (now - times_.idle_since < budget_.nanoseconds()) {
      sched_yield();
      return;
    }
    if (body_.BeginSleep()) {
      body_.AwaitSignal(body_.LongestSleepMs());
    } else {
      // Work came in the last moment, or a notification could not be requested.
      budget_.NoteWait(now - times_.idle_since);
      EndIdle(now);
    }
    body_.EndSleep();
  }

  // Looks at the shards a few times, because an owner that was just served is about to commit.
  // `once`: looks once, because there may be other work.
  bool Glance(bool once) {
    for (uint32_t looks = 0; looks < kLooksBeforeYield; looks += body_.shard_count()) {
      if (body_.TurnShards()) return true;
      if (once) return false;
      Pause();
    }
    return false;
  }

  void EndIdle(uint64_t now) {
    times_.idle_ns += now - times_.idle_since;
    times_.idle_since = 0;
  }

  Body& body_;
  TurnTimes& times_;
  YieldBudget budget_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_TURN_LOOP_H_
