// Chapter 9: a service in a loop of its own, with a timer beside its shards.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/guide/reply_service.h"

namespace baton::guide {
namespace {

class Clock final : public ReplyService {
 public:
  void Tick() { ++ticks_; }
  bool asked_to_end() const { return asked_to_end_; }

 private:
  absl::StatusOr<std::string> Reply(Shard&, Connection&, const std::string& message) override {
    return absl::StrCat(message, " at tick ", ticks_);
  }
  void OnShutdown(std::string_view) override { asked_to_end_ = true; }

  uint64_t ticks_ = 0;
  bool asked_to_end_ = false;
};

// Sleeps until the worker or the timer has something to do. The timer is short enough that Poll is
// called more often than the service's heartbeat_ms, also when nothing happens.
absl::Status Loop(Worker& worker, Clock& clock) {
  const FileDescriptor timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const FileDescriptor poller(epoll_create1(EPOLL_CLOEXEC));
  constexpr itimerspec kPeriod = {{0, 500'000'000}, {0, 500'000'000}};
  epoll_event event = {EPOLLIN, {}};
  if (timerfd_settime(timer.get(), 0, &kPeriod, nullptr) != 0 ||
      epoll_ctl(poller.get(), EPOLL_CTL_ADD, timer.get(), &event) != 0 ||
      epoll_ctl(poller.get(), EPOLL_CTL_ADD, worker.event_fd(), &event) != 0) {
    return ErrnoStatus(errno, "cannot make the loop");
  }
  while (!clock.asked_to_end()) {
    BATON_RETURN_IF_ERROR(worker.Poll().status());
    // False: something came meanwhile. True: event_fd becomes readable when something comes.
    if (worker.ArmEvent()) (void)epoll_wait(poller.get(), &event, 1, -1);
    uint64_t ticks = 0;
    if (read(timer.get(), &ticks, sizeof(ticks)) > 0) clock.Tick();
  }
  return absl::OkStatus();
}

// The shortest reaction, for a processor that has nothing else to do.
absl::Status LoopBusily(Worker& worker, const Clock& clock) {
  while (!clock.asked_to_end()) BATON_RETURN_IF_ERROR(worker.Poll().status());
  return absl::OkStatus();
}

absl::Status RunClock(const char* socket, const char* listen, bool busy) {
  Clock clock;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                         Worker::Attach({.socket = socket, .service = "counter"}, &clock));
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(listen));
  BATON_RETURN_IF_ERROR(worker->Listen(address.host, address.port).status());
  BATON_RETURN_IF_ERROR(worker->Ready());
  return busy ? LoopBusily(*worker, clock) : Loop(*worker, clock);
}  // the end of the worker releases its shards

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: loop SOCKET HOST:PORT [busy]" << std::endl;
    return 2;
  }
  const absl::Status status = baton::guide::RunClock(argv[1], argv[2], argc > 3);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
