#include "lib/verbs/rdma/connect_timer.h"

#include <sys/timerfd.h>

#include <cerrno>

#include "lib/base/clock.h"
#include "lib/base/errno_status.h"

namespace baton::verbs::rdma {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kNsPerSecond = 1'000'000'000;

}  // namespace

absl::Status ConnectTimer::Open(uint32_t timeout_ms) {
  timeout_ms_ = timeout_ms;
  timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  return timer_ ? absl::OkStatus() : ErrnoStatus(errno, "timerfd_create (see RLIMIT_NOFILE)");
}

void ConnectTimer::Add(RdmaConnectionId* connection) {
  waiting_.push_back({MonotonicNanoseconds() + timeout_ms_ * kNsPerMs, connection});
  if (waiting_.size() == 1) Arm();
}

void ConnectTimer::Remove(RdmaConnectionId* connection) {
  if (std::erase_if(waiting_, [connection](const Waiting& one) {
        return one.connection == connection;
      }) > 0) {
    Arm();
  }
}

RdmaConnectionId* ConnectTimer::TakeExpired() {
  if (waiting_.empty() || MonotonicNanoseconds() < waiting_.front().deadline_ns) return nullptr;
  RdmaConnectionId* const expired = waiting_.front().connection;
  waiting_.pop_front();
  Arm();
  return expired;
}

// For the first; without one it is stopped.
void ConnectTimer::Arm() {
  itimerspec when = {};
  if (!waiting_.empty()) {
    const uint64_t deadline = waiting_.front().deadline_ns;
    when.it_value = {static_cast<time_t>(deadline / kNsPerSecond),
                     static_cast<long>(deadline % kNsPerSecond)};
  }
  (void)timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

}  // namespace baton::verbs::rdma
