#include "lib/verbs/rdma/device_core.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/verbs/rdma/port.h"
#include "lib/verbs/rdma/queue_pair.h"

namespace baton::verbs::rdma {

absl::Status DeviceCore::CheckOpener(const char* call) const {
  if (!forked) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": only the process that opened device ",
                                                    ibv_get_device_name(context->device),
                                                    " does that, and this one was forked from it"));
}

absl::Status DeviceCore::OpenSignals() {
  pushed_signal.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!pushed_signal) return ErrnoStatus(errno, "eventfd");
  epoll.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus(errno, "epoll_create1");
  BATON_RETURN_IF_ERROR(awaiting_last_receive.Open(provider->last_receive_ms));
  BATON_RETURN_IF_ERROR(Watch(awaiting_last_receive.fd()));
  return Watch(pushed_signal.get());
}

absl::Status DeviceCore::Watch(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return ErrnoStatus(errno, "fcntl");
  return AddToEpoll(epoll.get(), fd, {EPOLLIN, {.fd = fd}});
}

void DeviceCore::Unwatch(int fd) { (void)epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr); }

void DeviceCore::PushEvent(CmEvent event) {
  pushed.push_back(std::move(event));
  (void)eventfd_write(pushed_signal.get(), 1);
}

template <typename Event>
bool DeviceCore::Take(std::deque<Event>* events, Event* event) {
  if (events->empty()) return false;
  *event = std::move(events->front());
  events->pop_front();
  ClearSignal();
  return true;
}

template <typename Event, typename Predicate>
void DeviceCore::Forget(std::deque<Event>* events, Predicate predicate) {
  if (events->empty()) return;
  std::erase_if(*events, predicate);
  ClearSignal();
}

bool DeviceCore::TakePushed(CmEvent* event) { return Take(&pushed, event); }

void DeviceCore::ForgetEventsOf(const ConnectionId* id) {
  Forget(&pushed, [id](const CmEvent& event) { return event.id == id; });
}

bool DeviceCore::IsPortDown() const { return IsDown(context.get(), port); }

void DeviceCore::Dispose(CmId id) {
  if (!id || !IsPortDown()) return;
  id.Silence();
  kept_ids.push_back(std::move(id));
}

void DeviceCore::PushDeviceEvent(DeviceEvent event) {
  device_events.push_back(std::move(event));
  (void)eventfd_write(pushed_signal.get(), 1);
}

void DeviceCore::PushAddressChange(const char* what) {
  for (const DeviceEvent& event : device_events) {
    if (event.text == what) return;
  }
  PushDeviceEvent({.type = DeviceEventType::kAddressesChanged, .port = port, .text = what});
}

void DeviceCore::ForgetEventsOf(const SharedReceiveQueue* queue) {
  Forget(&device_events,
         [queue](const DeviceEvent& event) { return event.shared_receive_queue == queue; });
}

// Also drops its event that the user has not taken, because another queue pair may get its number.
void DeviceCore::ForgetLastReceive(const RdmaQueuePair* queue_pair) {
  awaiting_last_receive.Remove(queue_pair);
  Forget(&device_events, [queue_pair](const DeviceEvent& event) {
    return event.type == DeviceEventType::kLastWorkRequestReached &&
           event.qp_number == queue_pair->number();
  });
}

void DeviceCore::EndWaitsForLastReceives() {
  while (RdmaQueuePair* const queue_pair = awaiting_last_receive.TakeExpired()) {
    queue_pair->OnLastReceive("flushed, as far as the device tells");
  }
}

bool DeviceCore::TakeDeviceEvent(DeviceEvent* event) { return Take(&device_events, event); }

void DeviceCore::Lose(const std::string& why) {
  if (std::exchange(lost, true)) return;
  PushDeviceEvent({.type = DeviceEventType::kDeviceLost, .text = why});
}

void DeviceCore::ClearSignal() {
  eventfd_t count;
  if (pushed.empty() && device_events.empty()) (void)eventfd_read(pushed_signal.get(), &count);
}

}  // namespace baton::verbs::rdma
