// baton-peer loads a ledger service over RDMA, and proves or refutes that nothing was lost.
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/peer/load_generator.h"
#include "worker/examples/peer/report.h"

namespace baton::peer {
namespace {

using nlohmann::ordered_json;

constexpr int kLongestSleepMs = 1000;
constexpr int kMaxDefectLines = 50;
constexpr uint32_t kPatienceMs = 5000;

struct LoadRunOptions {
  double seconds = 0;          // 0: until "stop", or the end of the input
  bool read_commands = false;  // from `command_fd`, whose end stops the run too
  int command_fd = 0;
  bool json = false;
  bool reconnect = false;
  uint32_t drain_timeout_ms = 10'000;
};

// Runs a LoadGenerator: its event loop, the commands on an input, answers on standard output.
//
// Commands, one per line: "mark NAME", "settle", "settle active", "rate N", "stop". Answers, each
// one line of JSON:
//   {"event":"connected","connections":N}     every connection is established
//   {"window":"NAME","max_silence_us":…}      to mark: the window since the last mark
//   {"settled":true,"after_us":…}             to settle: every connection, or active one, was
//   answered since
//   {"rate":N}                                to rate
//   {"final":true,"ok":…}                     at the end
class LoadRun {
 public:
  LoadRun(LoadGenerator* generator, const LoadRunOptions& options)
      : generator_(generator), options_(options) {}

  // Runs to the end. Returns true if everything was as it has to be. An error is this program's or
  // the device's, not the service's.
  absl::StatusOr<bool> Run();

 private:
  absl::Status OpenFiles();
  void SetTick();
  absl::Status Loop();
  absl::Status WaitForWork(int timeout_ms);
  void Report(uint64_t now);
  void ReadCommands();
  void OnCommand(const std::string& line);
  void Stop(uint64_t now);
  void Print(const std::string& line) const;
  void Print(const nlohmann::ordered_json& json) const;  // on one line

  LoadGenerator* const generator_;
  const LoadRunOptions options_;
  FileDescriptor epoll_;
  FileDescriptor timer_;
  std::string input_;  // an incomplete line
  bool input_open_ = false;
  bool announced_ = false;     // it was printed that all are connected
  uint64_t settle_start_ = 0;  // 0: no settle is under way
  uint64_t stopped_at_ = 0;    // 0: not yet
};

absl::StatusOr<bool> LoadRun::Run() {
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

absl::Status LoadRun::OpenFiles() {
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  timer_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_ || !timer_) return ErrnoStatus(errno, "cannot make the event loop");
  SetTick();
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

void LoadRun::SetTick() {
  const timespec tick = {0, static_cast<long>(generator_->tick_nanoseconds())};
  const itimerspec interval = {tick, tick};
  timerfd_settime(timer_.get(), 0, &interval, nullptr);
}

absl::Status LoadRun::Loop() {
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

absl::Status LoadRun::WaitForWork(int timeout_ms) {
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

void LoadRun::Report(uint64_t now) {
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

void LoadRun::ReadCommands() {
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

void LoadRun::OnCommand(const std::string& line) {
  uint64_t rate = 0;
  if (line.starts_with("mark ")) {
    Print(WindowJson(line.substr(5), generator_->EndWindow()));
  } else if (line == "settle" || line == "settle active") {
    settle_start_ = MonotonicNanoseconds();
    generator_->BeginSettle(line == "settle" ? LoadGenerator::Settling::kAll
                                             : LoadGenerator::Settling::kActive);
  } else if (line.starts_with("rate ") && absl::SimpleAtoi(line.substr(5), &rate)) {
    generator_->SetRate(rate);
    SetTick();
    Print(ordered_json::object({{"rate", rate}}));
  } else if (line == "stop") {
    Stop(MonotonicNanoseconds());
  } else {
    Print(ordered_json::object(
        {{"error", "commands are: mark NAME, settle, settle active, rate N, stop"}}));
  }
}

void LoadRun::Stop(uint64_t now) {
  if (stopped_at_ != 0) return;
  stopped_at_ = now;
  generator_->StopSending();
}

// The name of a window can be any bytes.
void LoadRun::Print(const ordered_json& json) const {
  Print(json.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace));
}

void LoadRun::Print(const std::string& line) const {
  std::puts(line.c_str());
  std::fflush(stdout);
}

struct Arguments {
  std::string connect;
  std::string standby;
  std::string device = "soft";
  std::string timeline;
  int realtime_priority = 0;
  LoadOptions load;
  LoadRunOptions run;
};

// Different peers, and one peer started twice, get different accounts.
uint64_t RandomClientBase() {
  std::random_device random;
  return (uint64_t{random()} << 32 | uint64_t{random()} << 24) + 1;
}

absl::StatusOr<bool> Run(Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(arguments.load.address, examples::ParseAddress(arguments.connect));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device,
                         examples::OpenDevice(arguments.device));
  if (!arguments.standby.empty()) {
    BATON_ASSIGN_OR_RETURN(arguments.load.standby, examples::ParseAddress(arguments.standby));
    arguments.load.reconnect = true;
  }
  arguments.load.client_base = RandomClientBase();
  arguments.run.reconnect = arguments.load.reconnect;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<LoadGenerator> generator,
                         LoadGenerator::Create(std::move(device), arguments.load));
  generator->SetDefectSink([lines = 0](const std::string& line) mutable {
    if (++lines <= kMaxDefectLines) std::fprintf(stderr, "%s\n", line.c_str());
    if (lines == kMaxDefectLines) std::fprintf(stderr, "further defects are only counted\n");
  });
  if (!arguments.timeline.empty()) {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<Timeline> timeline,
                           Timeline::Create(arguments.timeline, MonotonicNanoseconds()));
    generator->SetTimeline(std::move(timeline));
  }
  if (arguments.realtime_priority > 0) {
    BATON_RETURN_IF_ERROR(UseRealtimePriority(arguments.realtime_priority));
  }
  return LoadRun(generator.get(), arguments.run).Run();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  examples::Flags flags(
      "Keeps ledger accounts at a service over RDMA and checks every reply. Exit status 0: nothing "
      "was lost, duplicated, reordered, corrupt or disconnected; 1: something was; 2: no test.");
  flags.Add("--connect", &arguments.connect, "HOST:PORT of the service").Required();
  flags.Add("--device", &arguments.device, "soft, rdma, or rdma:NAME [soft]");
  flags.Add("--connections", &arguments.load.connections, "accounts, a connection each [1]");
  flags.Add("--active", &arguments.load.active,
            "connections that carry load, spread over all; the others are asked at a settle "
            "only [0: all]");
  flags.Add("--window", &arguments.load.window, "requests open per connection, at most [8]");
  flags.Add("--rate", &arguments.load.rate, "requests per second in all; 0: as fast as possible");
  flags.Add("--message-size", &arguments.load.message_bytes, "bytes of a request [64]");
  flags.Add("--reply-timeout-ms", &arguments.load.reply_timeout_ms,
            "a request without a reply for so long is lost [10000]");
  flags.Add("--drain-timeout-ms", &arguments.run.drain_timeout_ms,
            "how long the last replies are waited for [10000]");
  flags.Switch("--reconnect", &arguments.load.reconnect,
               "connect again at once when disconnected, and resume (a service without Baton)");
  flags.Add("--standby", &arguments.standby,
            "HOST:PORT of another service: each connection has a spare one to it, which takes "
            "over (services without Baton; implies --reconnect)");
  flags.Add("--duration", &arguments.run.seconds,
            "seconds; then stop. A service that does not listen yet is waited for, 5 s at most");
  flags.Switch("--until-stdin-closes", &arguments.run.read_commands,
               "take commands on standard input, until its end: mark NAME, settle, settle active, "
               "rate N, stop");
  flags.Switch("--json", &arguments.run.json, "print the result as JSON");
  flags.Add("--realtime-priority", &arguments.realtime_priority,
            "so that it measures the service and not its own waits for a core [0: none]");
  flags.Add("--timeline", &arguments.timeline,
            "CSV file for replies, silences and defects per 5 ms");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  if (!arguments.run.read_commands && arguments.run.seconds <= 0) {
    std::fprintf(stderr, "baton-peer: give --duration or --until-stdin-closes\n");
    return 2;
  }
  // A person who types commands may start the service a moment later.
  if (!arguments.run.read_commands) arguments.load.first_connect_patience_ms = kPatienceMs;
  signal(SIGPIPE, SIG_IGN);
  arguments.run.command_fd = STDIN_FILENO;
  const absl::StatusOr<bool> clean = Run(arguments);
  if (clean.ok()) return *clean ? 0 : 1;
  std::fprintf(stderr, "baton-peer: %s\n", std::string(clean.status().message()).c_str());
  return 2;
}

}  // namespace
}  // namespace baton::peer

int main(int argc, char** argv) { return baton::peer::Main(argc, argv); }
