#include "lib/nic/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::verbs::soft {
namespace {

constexpr int kEventsPerTurn = 64;
constexpr size_t kMostHot = 64;
constexpr uint64_t kTurnsWithoutSystemCalls = 8;
constexpr uint64_t kWarmNs = 50'000;  // longer than a peer takes to answer, shorter than a sleep

void ClearEvents(int fd) {
  uint64_t count;
  // Both kinds of descriptor are nonblocking: one that has no event is as good as one that is read.
  [[maybe_unused]] const ssize_t ignored = read(fd, &count, sizeof(count));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create() {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus(errno, "epoll_create1 (raise RLIMIT_NOFILE?)");
  FileDescriptor timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return ErrnoStatus(errno, "timerfd_create (raise RLIMIT_NOFILE?)");
  FileDescriptor wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake) return ErrnoStatus(errno, "eventfd (raise RLIMIT_NOFILE?)");
  auto loop = std::make_unique<EventLoop>(std::move(epoll), std::move(timer), std::move(wake));
  for (FileDescriptor* const fd : {&loop->timer_fd_, &loop->wake_fd_}) {
    BATON_RETURN_IF_ERROR(AddToEpoll(loop->epoll_.get(), fd->get(), {EPOLLIN, {.ptr = fd}}));
  }
  return loop;
}

EventLoop::EventLoop(FileDescriptor epoll, FileDescriptor timer, FileDescriptor wake)
    : epoll_(std::move(epoll)),
      timer_fd_(std::move(timer)),
      wake_fd_(std::move(wake)),
      now_(MonotonicNanoseconds()) {}

absl::Status EventLoop::Watch(int fd, uint32_t events, Pollable* pollable) {
  return AddToEpoll(epoll_.get(), fd, {events, {.ptr = pollable}});
}

void EventLoop::Rewatch(int fd, uint32_t events, Pollable* pollable) {
  epoll_event event = {events, {.ptr = pollable}};
  BATON_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void EventLoop::Unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void EventLoop::MarkDirty(Pollable* pollable) {
  if (pollable->dirty_) return;
  pollable->dirty_ = true;
  dirty_.push_back(pollable);
  Signal();
}

bool EventLoop::Heat(Pollable* pollable) {
  if (pollable->hot_ != 0) {
    hot_[pollable->hot_ - 1u].since = now_;
    return true;
  }
  if (hot_.size() >= kMostHot) return false;
  hot_.push_back({pollable, now_});
  pollable->hot_ = static_cast<uint8_t>(hot_.size());
  pollable->OnHeat();
  Signal();
  return true;
}

void EventLoop::Cool(Pollable* pollable) {
  if (pollable->hot_ == 0) return;
  Hot& place = hot_[pollable->hot_ - 1u];
  place = hot_.back();
  place.pollable->hot_ = std::exchange(pollable->hot_, uint8_t{0});
  hot_.pop_back();
  pollable->hot_ = 0;
}

// Goes backwards, because Cool() moves the last one, which was polled before, to the place of the
// one that cools.
void EventLoop::PollHot(bool* idle) {
  for (size_t i = hot_.size(); i-- > 0;) {
    if (i >= hot_.size()) continue;
    Pollable* const pollable = hot_[i].pollable;
    const bool worked = pollable->OnPoll();
    if (worked) *idle = false;
    if (pollable->hot_ == 0) continue;  // OnPoll has ended it
    uint64_t& since = hot_[pollable->hot_ - 1u].since;
    if (worked) {
      since = now_;
    } else if (now_ - since > kWarmNs && pollable->OnCool()) {
      Cool(pollable);
    }
  }
}

bool EventLoop::PrepareToWait() {
  while (!hot_.empty()) {
    Pollable* const pollable = hot_.back().pollable;
    if (!pollable->OnCool()) return false;
    Cool(pollable);
  }
  Settle(/*idle=*/true);
  return true;
}

void EventLoop::Forget(Pollable* pollable) {
  Cool(pollable);
  if (!pollable->dirty_) return;
  pollable->dirty_ = false;
  std::erase(dirty_, pollable);
}

void EventLoop::Signal() {
  if (signaled_) return;
  const uint64_t one = 1;
  BATON_CHECK(write(wake_fd_.get(), &one, sizeof(one)) == sizeof(one));
  signaled_ = true;
}

void EventLoop::Arm(Timer* timer, uint64_t delay_ns) {
  timers_.Arm(timer, MonotonicNanoseconds() + delay_ns);
  ArmTimerFd();
}

// A descriptor set too early, for a timer that was cancelled since, costs one vain wake-up.
void EventLoop::ArmTimerFd() {
  const uint64_t next = timers_.next_deadline();
  if (next >= armed_) return;
  itimerspec when = {};
  when.it_value.tv_sec = static_cast<time_t>(next / 1'000'000'000u);
  when.it_value.tv_nsec = static_cast<long>(next % 1'000'000'000u);
  BATON_CHECK(timerfd_settime(timer_fd_.get(), TFD_TIMER_ABSTIME, &when, nullptr) == 0);
  armed_ = next;
}

void EventLoop::TransmitDirty() {
  transmitting_.swap(dirty_);
  for (Pollable* pollable : transmitting_) {
    pollable->dirty_ = false;
    pollable->OnTransmit();
  }
  transmitting_.clear();
}

// While something is polled, most turns make no system call.
void EventLoop::HandleReady(bool* idle) {
  if (!hot_.empty() && turn_ % kTurnsWithoutSystemCalls != 0) return;
  epoll_event events[kEventsPerTurn];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerTurn, 0);
  for (int i = 0; i < count; ++i) {
    void* const data = events[i].data.ptr;
    if (data == &wake_fd_) continue;
    *idle = false;
    if (data == &timer_fd_) {
      ClearEvents(timer_fd_.get());
      armed_ = TimerQueue::kNever;
    } else {
      static_cast<Pollable*>(data)->OnReady(events[i].events);
    }
  }
}

void EventLoop::UpdateNow() { now_ = MonotonicNanoseconds(); }

bool EventLoop::Progress() {
  ++turn_;
  UpdateNow();
  bool idle = dirty_.empty();
  TransmitDirty();
  PollHot(&idle);
  HandleReady(&idle);
  timers_.Run(now_);
  ArmTimerFd();
  Settle(idle);
  return !idle;
}

// The wake-up is withdrawn only in a turn that found nothing else to do: in a busy loop it stays,
// and costs no system call.
void EventLoop::Settle(bool idle) {
  graveyard_.clear();
  if (signaled_ && dirty_.empty() && hot_.empty() && idle) {
    ClearEvents(wake_fd_.get());
    signaled_ = false;
  }
}

}  // namespace baton::verbs::soft
