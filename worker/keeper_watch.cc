#include "worker/keeper_watch.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lib/base/status.h"

namespace baton {
namespace {

constexpr uint64_t kWakeEvent = 0, kSelfEvent = 1, kSocketEvent = 2, kDriverEvent = 3,
                   kResumptionEvent = 4, kBeatEvent = 5;
static_assert(kBeatEvent < Watches::kFirstEvent);
// More than the library has. What does not fit comes with the next look.
constexpr int kEventsPerLook = 16;
constexpr long kBetweenResumptionsNs = 5'000'000;

void TakeExpirations(const FileDescriptor& timer) {
  uint64_t expirations;
  (void)!read(timer.get(), &expirations, sizeof(expirations));
}

}  // namespace

absl::Status KeeperWatch::Open(FileDescriptor wake, KeeperSession* keeper, const NativeHost* native,
                               WorkerNotices* notices, Watches* watches) {
  wake_ = std::move(wake);
  keeper_ = keeper;
  native_ = native;
  notices_ = notices;
  watches_ = watches;
  event_fd_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!event_fd_) return ErrnoStatus(errno, "epoll_create1 (see RLIMIT_NOFILE)");
  watches_->Open(event_fd_.get());
  BATON_RETURN_IF_ERROR(notices_->Open());
  epoll_event engine = {EPOLLIN, {.u64 = kWakeEvent}};
  epoll_event self = {EPOLLIN, {.u64 = kSelfEvent}};
  if (epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, wake_.get(), &engine) != 0 ||
      epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, notices_->fd(), &self) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  BATON_RETURN_IF_ERROR(WatchSession());
  if (keeper_->resumable()) {
    resumption_timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    epoll_event timer = {EPOLLIN, {.u64 = kResumptionEvent}};
    if (!resumption_timer_ ||
        epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, resumption_timer_.get(), &timer) != 0) {
      return ErrnoStatus(errno, "timerfd_create (see RLIMIT_NOFILE)");
    }
  }
  epoll_event driver = {EPOLLIN, {.u64 = kDriverEvent}};
  if (native_ && epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, native_->event_fd(), &driver) != 0) {
    return ErrnoStatus(errno, "epoll_ctl of the native driver's event_fd");
  }
  return absl::OkStatus();
}

absl::Status KeeperWatch::WatchSession() {
  watched_socket_ = keeper_->fd();
  watched_socket_number_ = keeper_->sockets_used();
  epoll_event socket = {EPOLLIN | EPOLLRDHUP, {.u64 = kSocketEvent}};
  if (epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, watched_socket_, &socket) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, "epoll_ctl of the session's socket");
}

// If the session has another socket by now, this one is closed and watched no more, and its number
// may be that of a descriptor of the application.
void KeeperWatch::UnwatchSession() {
  if (keeper_->sockets_used() != watched_socket_number_) return;
  (void)epoll_ctl(event_fd_.get(), EPOLL_CTL_DEL, watched_socket_, nullptr);
}

absl::Status KeeperWatch::WakeEach(uint32_t heartbeat_ms) {
  const timespec period = {heartbeat_ms / 1000, heartbeat_ms % 1000 * 1'000'000L};
  const itimerspec setting = {period, period};
  epoll_event beat = {EPOLLIN, {.u64 = kBeatEvent}};
  beat_timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (beat_timer_ && timerfd_settime(beat_timer_.get(), 0, &setting, nullptr) == 0 &&
      epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, beat_timer_.get(), &beat) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, "timerfd_create (see RLIMIT_NOFILE)");
}

bool KeeperWatch::HasNews() {
  epoll_event events[kEventsPerLook];
  const int count = epoll_wait(event_fd_.get(), events, kEventsPerLook, 0);
  bool news = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t event = events[i].data.u64;
    // The caller has just polled: the next sign of life is due with the timer's next expiration.
    if (event == kBeatEvent) TakeExpirations(beat_timer_);
    // The driver has taken its earlier events when a notification was requested.
    if (event != kBeatEvent && event != kDriverEvent) news = true;
  }
  return news;
}

absl::StatusOr<bool> KeeperWatch::Sleep(int timeout_ms) const {
  epoll_event events[kEventsPerLook];
  const int count = epoll_wait(event_fd_.get(), events, kEventsPerLook, timeout_ms);
  if (count < 0 && errno != EINTR) return ErrnoStatus(errno, "epoll_wait");
  return std::any_of(events, events + std::max(count, 0),
                     [](const epoll_event& event) { return event.data.u64 != kBeatEvent; });
}

bool KeeperWatch::SeesWatched() const {
  if (watches_->empty()) return false;
  epoll_event events[kEventsPerLook];
  const int count = epoll_wait(event_fd_.get(), events, kEventsPerLook, 0);
  return std::any_of(events, events + std::max(count, 0), [](const epoll_event& event) {
    return event.data.u64 >= Watches::kFirstEvent;
  });
}

void KeeperWatch::Check() {
  epoll_event events[kEventsPerLook];
  const int count = epoll_wait(event_fd_.get(), events, kEventsPerLook, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeEvent) {
      char signals[256];
      if (recv(wake_.get(), signals, sizeof(signals), MSG_DONTWAIT) == 0) LoseKeeper();
    } else if (events[i].data.u64 == kSelfEvent) {
      notices_->TakeEvent();
    } else if (events[i].data.u64 == kSocketEvent) {
      constexpr uint32_t kClosed = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
      if ((events[i].events & kClosed) != 0) {
        keeper_->resumable() ? BeginResumption() : LoseKeeper();
      }
    } else if (events[i].data.u64 == kResumptionEvent) {
      TakeExpirations(resumption_timer_);
      ContinueResumption();
    } else if (events[i].data.u64 == kBeatEvent) {
      TakeExpirations(beat_timer_);  // the Poll that looks here is the sign of life
    } else if (events[i].data.u64 >= Watches::kFirstEvent) {
      watches_->Note(events[i].data.u64);
    }  // The driver takes its own events.
  }
  keeper_->Settle();
  // A request may have resumed the session, over another socket.
  const bool unwatched = keeper_->sockets_used() != watched_socket_number_;
  if (!gone_ && !resuming_ && unwatched && !WatchSession().ok()) LoseKeeper();
}

// The driver serves the queues without a keeper, so this worker goes on, too, and looks for the
// next keeper meanwhile.
void KeeperWatch::BeginResumption() {
  if (gone_ || std::exchange(resuming_, true)) return;
  UnwatchSession();
  SetResumptionTimer(kBetweenResumptionsNs);
  ContinueResumption();
}

void KeeperWatch::ContinueResumption() {
  if (!resuming_) return;
  const absl::StatusOr<bool> resumed = keeper_->Resume();
  if (resumed.ok() && !*resumed) return;
  resuming_ = false;
  SetResumptionTimer(0);
  if (!resumed.ok() || !WatchSession().ok()) LoseKeeper();
}

void KeeperWatch::SetResumptionTimer(long period_ns) {
  const timespec period = {0, period_ns};
  const itimerspec setting = {period, period};
  (void)timerfd_settime(resumption_timer_.get(), 0, &setting, nullptr);
}

void KeeperWatch::LoseKeeper() {
  gone_ = true;
  if (!native_) return;
  if (std::exchange(resuming_, false)) SetResumptionTimer(0);
  // A native worker goes on, and sleeps. These events must not wake it over and over.
  epoll_ctl(event_fd_.get(), EPOLL_CTL_DEL, wake_.get(), nullptr);
  UnwatchSession();
}

}  // namespace baton
