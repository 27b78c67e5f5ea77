// Objects that wait for something, each for the same time at most, with one descriptor for all.
#ifndef LIB_VERBS_RDMA_TIMEOUT_QUEUE_H_
#define LIB_VERBS_RDMA_TIMEOUT_QUEUE_H_

#include <sys/timerfd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <deque>

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"

namespace baton::verbs::rdma {

template <typename Object>
class TimeoutQueue {
 public:
  // Makes a new timer and removes all objects.
  absl::Status Open(uint32_t timeout_ms) {
    waiting_.clear();
    timeout_ms_ = timeout_ms;
    timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    return timer_ ? absl::OkStatus() : ErrnoStatus(errno, "timerfd_create (see RLIMIT_NOFILE)");
  }

  void Add(Object* object) {  // begins to wait now
    waiting_.push_back({MonotonicNanoseconds() + timeout_ms_ * uint64_t{1'000'000}, object});
    if (waiting_.size() == 1) Arm();
  }
  void Remove(const Object* object) {  // if it waits
    const auto is_it = [object](const Waiting& one) { return one.object == object; };
    if (std::erase_if(waiting_, is_it) > 0) Arm();
  }
  // Removes and returns an object that has waited long enough. nullptr: there is none.
  Object* TakeExpired() {
    if (waiting_.empty() || MonotonicNanoseconds() < waiting_.front().deadline_ns) return nullptr;
    Object* const expired = waiting_.front().object;
    waiting_.pop_front();
    Arm();
    return expired;
  }

  int fd() const { return timer_.get(); }  // readable when an object may have expired
  uint32_t timeout_ms() const { return timeout_ms_; }

 private:
  struct Waiting {
    uint64_t deadline_ns;
    Object* object;
  };

  // Sets the timer for the first object, or stops it if there is none.
  void Arm() {
    itimerspec when = {};
    if (!waiting_.empty()) {
      const uint64_t deadline = waiting_.front().deadline_ns;
      when.it_value = {static_cast<time_t>(deadline / 1'000'000'000),
                       static_cast<long>(deadline % 1'000'000'000)};
    }
    (void)timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  }

  FileDescriptor timer_;
  uint32_t timeout_ms_ = 0;
  std::deque<Waiting> waiting_;  // by deadline
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_TIMEOUT_QUEUE_H_
