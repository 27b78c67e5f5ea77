#include "supervisor/driver/native/drain.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/readiness.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/log/log.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/down_reason.h"
#include "supervisor/driver/native/adoption.h"
#include "supervisor/driver/workers/output_lines.h"

namespace baton::driver_process {
namespace {

// Signals, for poll(2), while it lives.
class SignalWatch {
 public:
  SignalWatch() {
    sigemptyset(&signals_);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals_, signal);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
    descriptor_.Reset(signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalWatch() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return descriptor_.get(); }
  int Take() const {  // 0: none has come
    signalfd_siginfo info = {};
    return read(fd(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t signals_, before_;
  FileDescriptor descriptor_;
};

class Drain {
 public:
  // `output`: where the workers print; none: nothing of that is known.
  Drain(HeldDescriptors* held, const internal::KeeperConfig& config, Adoption* adoption,
        FileDescriptor output, BatondLink* batond)
      : held_(held),
        config_(config),
        adoption_(adoption),
        output_(std::move(output)),
        batond_(batond) {}

  // Why it is over; empty: told to stop.
  std::string Run() {
    for (;;) {
      adoption_->Turn(MonotonicNanoseconds());
      if (std::string why = adoption_->WhyOver(); !why.empty()) return why;
      Tell();
      if (!std::exchange(settled_, true)) {
        Adoption::Settle(held_);
        // batond's time limit is for drivers that begin, and this may take for ever. Who is told to
        // stop from here on has settled, and has its signals watched.
        TellReady();
      }
      switch (signals_.Take()) {
        case 0:
          break;
        case SIGUSR1:
          return "it was told to end them";
        default:
          return "";
      }
      ReadOutput();
      Beat();
      Wait();
    }
  }

 private:
  void Beat() {
    const uint64_t now = MonotonicNanoseconds();
    if (now < next_beat_ns_) return;
    next_beat_ns_ = now + std::chrono::nanoseconds(batond_->Beat()).count();
  }

  void ReadOutput() {
    if (output_ && !lines_.ReadSome(output_.get(), MonotonicNanoseconds())) output_.Reset();
  }

  void Wait() const {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
    if (output_) entries.push_back({output_.get(), POLLIN, 0});
    for (const int fd : adoption_->descriptors()) entries.push_back({fd, POLLIN, 0});
    (void)poll(entries.data(), entries.size(), Adoption::kTurnMs);
  }

  void Tell() {
    const uint32_t count = adoption_->connection_count();
    if (std::exchange(told_, count) == count) return;
    SetDownReason(
        config_.state_dir(), config_.service().name(),
        absl::StrCat("its driver died; adopted, draining: ", count,
                     count == 1 ? " connection goes" : " connections go",
                     " on with the workers that there were, and new ones are refused until the "
                     "last has ended (to end them now: kill -USR1 ",
                     getpid(), ")"));
  }

  HeldDescriptors* const held_;
  const internal::KeeperConfig& config_;
  Adoption* const adoption_;
  FileDescriptor output_;
  BatondLink* const batond_;
  OutputLines lines_{kNativeOutput};
  SignalWatch signals_;
  uint64_t next_beat_ns_ = 0;
  uint32_t told_ = ~0u;
  bool settled_ = false;
};

}  // namespace

absl::StatusOr<bool> DrainFormer(HeldDescriptors* held, const internal::KeeperConfig& config,
                                 BatondLink* batond) {
  const std::string& service = config.service().name();
  absl::StatusOr<std::unique_ptr<Adoption>> adoption = Adoption::Begin(held, config.service());
  if (!adoption.ok()) {
    log::Write(spdlog::level::err, {.kind = "adoption_failed"},
               fmt::format("service {}: its driver died, and its connections end: {}", service,
                           MessageOf(adoption.status())));
  } else if (*adoption != nullptr) {
    log::Write(
        spdlog::level::info, {.kind = "adopted"},
        fmt::format("service {}: its driver died; {} connections go on with the workers that "
                    "there were, new ones are refused until the last has ended",
                    service, (*adoption)->connection_count()));
    BATON_ASSIGN_OR_RETURN(std::vector<FileDescriptor> output, held->Get(kHeldOutput));
    if (output.empty()) output.emplace_back();
    // Batond may die meanwhile, and the workers' lives hang on what it holds.
    BATON_RETURN_IF_ERROR(held->CopyAll());
    const std::string why =
        Drain(held, config, adoption->get(), std::move(output[0]), batond).Run();
    if (why.empty()) return false;
    log::Write(
        spdlog::level::info, {.kind = "drained"},
        fmt::format("service {}: its workers are ended, and it begins anew: {}", service, why));
  }
  BATON_RETURN_IF_ERROR(Adoption::End(held));
  return true;
}

}  // namespace baton::driver_process
