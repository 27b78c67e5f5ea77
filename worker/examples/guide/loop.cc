// Chapter 9: a service with a timer and signals beside its shards, and loops of its own.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/guide/reply_service.h"

namespace baton::guide {
namespace {

// Counts the expirations of a timer.
class Clock final : public ReplyService {
 public:
  absl::Status Open() {
    constexpr itimerspec kPeriod = {{0, 500'000'000}, {0, 500'000'000}};
    timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (timerfd_settime(timer_.get(), 0, &kPeriod, nullptr) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "cannot make a timer");
  }
  int timer() const { return timer_.get(); }
  void Tick() {
    uint64_t ticks = 0;
    if (read(timer_.get(), &ticks, sizeof(ticks)) > 0) ticks_ += ticks;
  }
  bool asked_to_end() const { return asked_to_end_; }

 private:
  absl::StatusOr<std::string> Reply(Shard&, Connection&, const std::string& message) override {
    return absl::StrCat(message, " at tick ", ticks_);
  }
  void OnShutdown(std::string_view) override { asked_to_end_ = true; }

  FileDescriptor timer_;
  uint64_t ticks_ = 0;
  bool asked_to_end_ = false;
};

// Blocks the signals that end the program, and returns a descriptor for them. Call it before
// Attach: threads that the library starts inherit the mask.
FileDescriptor TakeSignals() {
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  return FileDescriptor(signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
}

// The library's loop, which waits for the timer and the signals, too.
absl::Status RunWithOthers(Worker& worker, Clock& clock, int signals) {
  BATON_RETURN_IF_ERROR(worker.Watch(clock.timer(), [&] { clock.Tick(); }));
  BATON_RETURN_IF_ERROR(worker.Watch(signals, [&] { worker.Stop(); }));
  return worker.Run();
}

// A loop of its own. It sleeps until the worker or the timer has something to do.
absl::Status Loop(Worker& worker, Clock& clock) {
  const FileDescriptor poller(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {EPOLLIN, {}};
  if (epoll_ctl(poller.get(), EPOLL_CTL_ADD, clock.timer(), &event) != 0 ||
      epoll_ctl(poller.get(), EPOLL_CTL_ADD, worker.event_fd(), &event) != 0) {
    return ErrnoStatus(errno, "cannot make the loop");
  }
  while (!clock.asked_to_end()) {
    BATON_RETURN_IF_ERROR(worker.Poll().status());
    // False: something came meanwhile. True: event_fd becomes readable when something comes.
    if (worker.ArmEvent()) (void)epoll_wait(poller.get(), &event, 1, -1);
    clock.Tick();
  }
  return absl::OkStatus();
}

// The shortest reaction, for a processor that has nothing else to do.
absl::Status LoopBusily(Worker& worker, const Clock& clock) {
  while (!clock.asked_to_end()) BATON_RETURN_IF_ERROR(worker.Poll().status());
  return absl::OkStatus();
}

absl::Status RunClock(const char* socket, const char* listen, std::string_view how) {
  Clock clock;
  BATON_RETURN_IF_ERROR(clock.Open());
  const FileDescriptor signals = how.empty() ? TakeSignals() : FileDescriptor();
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                         Worker::Attach({.socket = socket, .service = "counter"}, &clock));
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(listen));
  BATON_RETURN_IF_ERROR(worker->Listen(address.host, address.port).status());
  if (how.empty()) return RunWithOthers(*worker, clock, signals.get());
  BATON_RETURN_IF_ERROR(worker->Ready());
  return how == "busy" ? LoopBusily(*worker, clock) : Loop(*worker, clock);
}  // the end of the worker releases its shards

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: loop SOCKET HOST:PORT [epoll|busy]" << std::endl;
    return 2;
  }
  const absl::Status status = baton::guide::RunClock(argv[1], argv[2], argc > 3 ? argv[3] : "");
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
