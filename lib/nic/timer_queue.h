// Deadlines of one engine: a binary heap in which every timer knows its place, so that arming and
// cancelling allocate nothing on the steady path.
#ifndef LIB_NIC_TIMER_QUEUE_H_
#define LIB_NIC_TIMER_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace baton::verbs::soft {

class TimerQueue;

// Calls fire(context) once per arming. Its owner cancels it before destroying it.
struct Timer {
  void (*fire)(void* context) = nullptr;
  void* context = nullptr;

  bool armed() const { return index >= 0; }

 private:
  friend class TimerQueue;
  uint64_t deadline = 0;  // nanoseconds, CLOCK_MONOTONIC
  ptrdiff_t index = -1;   // in the heap
};

class TimerQueue {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;

  void Arm(Timer* timer, uint64_t deadline) {
    Cancel(timer);
    timer->deadline = deadline;
    timer->index = static_cast<ptrdiff_t>(heap_.size());
    heap_.push_back(timer);
    Up(heap_.size() - 1);
  }

  void Cancel(Timer* timer) {
    if (timer->index < 0) return;
    const size_t hole = static_cast<size_t>(timer->index);
    timer->index = -1;
    Timer* last = heap_.back();
    heap_.pop_back();
    if (last == timer) return;
    Place(hole, last);
    Up(hole);
    Down(static_cast<size_t>(last->index));
  }

  uint64_t next_deadline() const { return heap_.empty() ? kNever : heap_.front()->deadline; }

  // Fires timers that are due at `now`, at most as many as were armed at the beginning.
  void Run(uint64_t now) {
    for (size_t left = heap_.size(); left > 0 && next_deadline() <= now; --left) {
      Timer* timer = heap_.front();
      Cancel(timer);
      timer->fire(timer->context);
    }
  }

 private:
  void Place(size_t at, Timer* timer) {
    heap_[at] = timer;
    timer->index = static_cast<ptrdiff_t>(at);
  }

  void Up(size_t at) {
    Timer* timer = heap_[at];
    while (at > 0 && timer->deadline < heap_[(at - 1) / 2]->deadline) {
      Place(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    Place(at, timer);
  }

  void Down(size_t at) {
    Timer* timer = heap_[at];
    for (size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1]->deadline < heap_[child]->deadline) ++child;
      if (timer->deadline <= heap_[child]->deadline) break;
      Place(at, heap_[child]);
      at = child;
    }
    Place(at, timer);
  }

  std::vector<Timer*> heap_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_TIMER_QUEUE_H_
