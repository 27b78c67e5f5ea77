#include "worker/examples/peer/session.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "worker/examples/peer/report.h"

namespace baton::peer {
namespace {

using nlohmann::ordered_json;

constexpr int kLongestSleepMs = 1000;

}  // namespace

absl::StatusOr<bool> Session::Run() {
  BATON_RETURN_IF_ERROR(OpenFiles());
  BATON_RETURN_IF_ERROR(generator_->Start());
  BATON_RETURN_IF_ERROR(Loop());
  if (!generator_->IsDrained()) generator_->GiveUp();
  const Summary summary = generator_->Summarize();
  const bool clean = IsClean(summary, options_.reconnect);
  if (options_.json) {
    Print(SummaryJson(summary, clean));
  } else {
    Print(SummaryText(summary, clean));
  }
  return clean;
}

absl::Status Session::OpenFiles() {
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  timer_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_ || !timer_) return ErrnoStatus(errno, "cannot make the event loop");
  const timespec tick = {0, static_cast<long>(generator_->tick_nanoseconds())};
  const itimerspec interval = {tick, tick};
  timerfd_settime(timer_.get(), 0, &interval, nullptr);
  input_open_ = options_.read_commands;
  if (input_open_) {
    fcntl(options_.command_fd, F_SETFL, fcntl(options_.command_fd, F_GETFL) | O_NONBLOCK);
  }
  for (int fd : {generator_->event_fd(), timer_.get(), input_open_ ? options_.command_fd : -1}) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (fd >= 0 && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoStatus(errno, "cannot watch an input");
    }
  }
  return absl::OkStatus();
}

absl::Status Session::Loop() {
  const uint64_t start = MonotonicNanoseconds();
  const auto limit = static_cast<uint64_t>(options_.seconds * 1e9);
  const uint64_t drain_limit = uint64_t{options_.drain_timeout_ms} * 1'000'000;
  while (true) {
    BATON_ASSIGN_OR_RETURN(const bool may_sleep, generator_->Turn());
    const uint64_t now = MonotonicNanoseconds();
    Report(now);
    if (limit != 0 && now - start >= limit) Stop(now);
    if (!options_.reconnect && !generator_->connection_error().ok()) Stop(now);
    if (stopped_at_ != 0 && (generator_->IsDrained() || now - stopped_at_ > drain_limit)) {
      return absl::OkStatus();
    }
    BATON_RETURN_IF_ERROR(WaitForWork(may_sleep ? kLongestSleepMs : 0));
  }
}

absl::Status Session::WaitForWork(int timeout_ms) {
  epoll_event events[4];
  const int count = epoll_wait(epoll_.get(), events, 4, timeout_ms);
  if (count < 0 && errno != EINTR) return ErrnoStatus(errno, "cannot wait for events");
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == timer_.get()) {
      uint64_t ticks;
      if (read(timer_.get(), &ticks, sizeof(ticks)) < 0) continue;  // another look has taken it
    }
    if (input_open_ && events[i].data.fd == options_.command_fd) ReadCommands();
  }
  return absl::OkStatus();
}

void Session::Report(uint64_t now) {
  if (!announced_ && generator_->AllEstablished()) {
    announced_ = true;
    if (options_.json) {
      Print(ordered_json::object(
          {{"event", "connected"}, {"connections", generator_->Summarize().established}}));
    }
  }
  if (settle_start_ != 0 && generator_->IsSettled()) {
    Print(ordered_json::object(
        {{"settled", true}, {"after_us", static_cast<double>(now - settle_start_) / 1000}}));
    settle_start_ = 0;
  }
}

void Session::ReadCommands() {
  char bytes[1024];
  ssize_t count;
  while ((count = read(options_.command_fd, bytes, sizeof(bytes))) > 0) {
    input_.append(bytes, static_cast<size_t>(count));
  }
  const bool ended = count == 0 || (errno != EAGAIN && errno != EINTR);
  size_t end;
  while ((end = input_.find('\n')) != std::string::npos) {
    const std::string line = input_.substr(0, end);
    input_.erase(0, end + 1);
    OnCommand(line);
  }
  if (!ended) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, options_.command_fd, nullptr);
  input_open_ = false;
  Stop(MonotonicNanoseconds());
}

void Session::OnCommand(const std::string& line) {
  uint64_t rate = 0;
  if (line.starts_with("mark ")) {
    Print(WindowJson(line.substr(5), generator_->EndWindow()));
  } else if (line == "settle" || line == "settle active") {
    settle_start_ = MonotonicNanoseconds();
    generator_->BeginSettle(line == "settle" ? LoadGenerator::Settling::kAll
                                             : LoadGenerator::Settling::kActive);
  } else if (line.starts_with("rate ") && absl::SimpleAtoi(line.substr(5), &rate)) {
    generator_->SetRate(rate);
    Print(ordered_json::object({{"rate", rate}}));
  } else if (line == "stop") {
    Stop(MonotonicNanoseconds());
  } else {
    Print(ordered_json::object(
        {{"error", "commands are: mark NAME, settle, settle active, rate N, stop"}}));
  }
}

void Session::Stop(uint64_t now) {
  if (stopped_at_ != 0) return;
  stopped_at_ = now;
  generator_->StopSending();
}

// The name of a window can be any bytes.
void Session::Print(const ordered_json& json) const {
  Print(json.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace));
}

void Session::Print(const std::string& line) const {
  std::puts(line.c_str());
  std::fflush(stdout);
}

}  // namespace baton::peer
