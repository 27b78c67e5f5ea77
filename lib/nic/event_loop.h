// The event loop of a soft device: one epoll with its timers and wake-ups, and the connections that
// have something to write.
#ifndef LIB_NIC_EVENT_LOOP_H_
#define LIB_NIC_EVENT_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"

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

// The deadlines of one event loop: a binary heap in which every timer knows its place, so that
// arming and cancelling allocate nothing on the steady path.
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

class Pollable {
 public:
  virtual ~Pollable() = default;
  virtual void OnReady(uint32_t events) = 0;  // EPOLL* bits
  virtual void OnTransmit() {}                // once after MarkDirty

  // Only for objects that are polled: see EventLoop::Heat.
  virtual void OnHeat() {}
  virtual bool OnPoll() { return false; }  // returns false if there was nothing
  virtual bool OnCool() { return true; }   // returns false if there is something now

 private:
  friend class EventLoop;
  bool dirty_ = false;
  uint8_t hot_ = 0;  // its index in EventLoop::hot_ plus 1; 0: not hot
};

class EventLoop {
 public:
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create();
  EventLoop(FileDescriptor epoll, FileDescriptor timer, FileDescriptor wake);

  absl::Status Watch(int fd, uint32_t events, Pollable* pollable);
  void Rewatch(int fd, uint32_t events, Pollable* pollable);
  void Unwatch(int fd);

  // Calls OnTransmit in the next Progress.
  void MarkDirty(Pollable* pollable);
  // Makes a pollable hot: calls OnHeat, unless it was hot before, and then OnPoll in each turn.
  // When OnPoll has found nothing for a while, or before a wait, the loop calls OnCool. If that
  // returns true, the pollable is no longer hot. While any pollable is hot, event_fd() is readable.
  // Returns false if too many are hot.
  bool Heat(Pollable* pollable);
  void Cool(Pollable* pollable);
  bool hot(const Pollable* pollable) const { return pollable->hot_ != 0; }
  // Cools all. Returns false if one of them has something to do.
  bool PrepareToWait();

  // Called before a pollable is destroyed, which must not happen inside Progress except through
  // Bury().
  void Forget(Pollable* pollable);
  // Keeps a pollable until no event of this turn can name it.
  void Bury(std::unique_ptr<Pollable> pollable) { graveyard_.push_back(std::move(pollable)); }

  // Marks the device as lost. The fault plan does this.
  void Lose() { lost_ = true; }
  bool lost() const { return lost_; }

  void Arm(Timer* timer, uint64_t delay_ns);
  void Cancel(Timer* timer) { timers_.Cancel(timer); }

  // Reads the clock, for work outside of a turn.
  void UpdateNow();
  // Does one turn. Returns false if there was nothing to do.
  bool Progress();
  int event_fd() const { return epoll_.get(); }
  uint64_t now() const { return now_; }    // ns, of the latest Progress or UpdateNow
  uint64_t turn() const { return turn_; }  // grows with each Progress

 private:
  struct Hot {
    Pollable* pollable;
    uint64_t since;  // when OnPoll found something last
  };

  void TransmitDirty();
  void PollHot(bool* idle);
  void HandleReady(bool* idle);
  void ArmTimerFd();
  void Signal();
  void Settle(bool idle);

  FileDescriptor epoll_;
  FileDescriptor timer_fd_;
  FileDescriptor wake_fd_;  // eventfd; readable while signaled_
  TimerQueue timers_;
  uint64_t armed_ = TimerQueue::kNever;  // what timer_fd_ is set to
  uint64_t now_ = 0;
  uint64_t turn_ = 1;
  bool lost_ = false;
  bool signaled_ = false;
  std::vector<Hot> hot_;
  std::vector<Pollable*> dirty_;
  std::vector<Pollable*> transmitting_;  // swapped with dirty_, to keep both capacities
  std::vector<std::unique_ptr<Pollable>> graveyard_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_EVENT_LOOP_H_
