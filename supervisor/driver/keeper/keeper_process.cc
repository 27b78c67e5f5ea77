#include "supervisor/driver/keeper/keeper_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "supervisor/batond/open_within.h"

namespace baton::driver_process {
namespace {

// How long the driver waits for a killed process to end, and does nothing else. Usually the process
// is gone in some milliseconds.
constexpr std::chrono::milliseconds kDeathTimeout(100);
// The cause of this many crashes in a row may be gone when the next keeper starts.
constexpr uint32_t kCrashesInPassing = 3;

bool HasCrashed(const siginfo_t& end) {
  if (end.si_code == CLD_EXITED) return end.si_status != 0;
  return end.si_status != SIGKILL && end.si_status != SIGTERM && end.si_status != SIGINT;
}

// Reaps the process if it has ended, and returns whether it has.
bool ReapOf(const SpawnedProcess& process, siginfo_t* end) {
  return waitid(P_PIDFD, static_cast<id_t>(process.pidfd.get()), end, WEXITED | WNOHANG) == 0 &&
         end->si_pid != 0;
}

bool IsReadable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & POLLHUP) == 0;
}

}  // namespace

absl::Status KeeperProcess::Start(const std::string& input) {
  absl::StatusOr<Running> started = Run(input);
  if (!started.ok() && program_.on_probation()) {
    GiveUp(absl::StrCat("cannot be run: ", started.status().message()));
    started = Run(input);
  }
  BATON_RETURN_IF_ERROR(started.status());
  running_ = *std::move(started);
  last_sign_ = running_->started;
  shows_life_ = hung_ = faulty_ = false;
  return absl::OkStatus();
}

absl::StatusOr<KeeperProcess::Running> KeeperProcess::Run(const std::string& input) {
  BATON_ASSIGN_OR_RETURN(const ProgramFile program, program_.ToRun());
  BATON_ASSIGN_OR_RETURN(SocketPair orders, MakeSocketPair(SOCK_STREAM));
  BATON_ASSIGN_OR_RETURN(SocketPair news, MakeSocketPair(SOCK_STREAM));
  SpawnRequest request;
  request.program = program_.path();
  request.file = program;
  request.input = input;
  request.descriptors = {{kOrdersVariable, orders.theirs.get()},
                         {kNewsVariable, news.theirs.get()}};
  program.GiveHelpers(&request.descriptors);
  if (network_ >= 0) request.descriptors.emplace_back(kNetworkVariable, network_);
  BATON_ASSIGN_OR_RETURN(SpawnedProcess process, Spawn(request));
  return Running{std::move(process), MessageChannel(std::move(orders.ours)),
                 MessageChannel(std::move(news.ours)), Clock::now()};
}

// ---------------------------------------------------------------- the next program

absl::Status KeeperProcess::StartNext(const std::string& input,
                                      std::chrono::milliseconds probation) {
  if (next_) return absl::AbortedError("another replacement of this keeper is under way");
  Prove();
  BATON_RETURN_IF_ERROR(program_.Replace(probation));
  absl::StatusOr<Running> started = Run(input);
  if (!started.ok()) {
    program_.GiveUp();
    return started.status();
  }
  next_ = *std::move(started);
  return absl::OkStatus();
}

void KeeperProcess::LookAtNext() {
  if (!next_) return;
  siginfo_t end = {};
  if (ReapOf(next_->process, &end)) {
    return GiveUpNext(absl::StrCat("its keeper ", DescribeEnd(end), " before it gave an order"));
  }
  const Clock::time_point now = Clock::now();
  if (!followed_at_ && IsReadable(next_->orders.fd())) {
    followed_at_ = now;
    Signal(SIGTERM);
  } else if (!followed_at_ && now - next_->started >= kStartTimeout) {
    (void)SendSignal(next_->process.pidfd.get(), SIGKILL);
  } else if (followed_at_ && now - *followed_at_ >= kEndTimeout) {
    Signal(SIGKILL);
  }
}

bool KeeperProcess::FollowWithNext() {
  if (!next_) return false;
  if (!followed_at_ && !IsReadable(next_->orders.fd())) {
    // A keeper whose start hangs in the program's file system cannot be killed. As long as it has
    // not died, Spawn() does not start a program at this path again.
    KillAndReap(next_->process.pid, next_->process.pidfd.get(), kDeathTimeout, program_.path());
    GiveUpNext("the keeper that it was to follow ended first");
    return false;
  }
  running_ = std::exchange(next_, std::nullopt);
  followed_at_.reset();
  running_->started = last_sign_ = Clock::now();
  shows_life_ = hung_ = faulty_ = false;
  return true;
}

void KeeperProcess::ForgetFormer() {
  for (std::optional<Running>* const keeper : {&running_, &next_}) {
    if (!*keeper) continue;
    (void)SendSignal((*keeper)->process.pidfd.get(), SIGKILL);
    former_.push_back(std::move((*keeper)->process.pidfd));
    keeper->reset();
  }
  followed_at_.reset();
  shows_life_ = hung_ = faulty_ = false;
}

bool KeeperProcess::former_are_gone() {
  std::erase_if(former_, [](const FileDescriptor& pidfd) {
    pollfd end = {pidfd.get(), POLLIN, 0};
    return poll(&end, 1, 0) > 0;
  });
  return former_.empty();
}

std::vector<int> KeeperProcess::process_descriptors() const {
  std::vector<int> all;
  if (running_) all.push_back(running_->process.pidfd.get());
  if (next_) all.push_back(next_->process.pidfd.get());
  if (next_ && !followed_at_) all.push_back(next_->orders.fd());
  return all;
}

void KeeperProcess::GiveUpNext(const std::string& why) {
  next_.reset();
  followed_at_.reset();
  GiveUp(why);
}

void KeeperProcess::GiveUp(const std::string& why) {
  program_.GiveUp();
  given_up_ = why;
}

// ---------------------------------------------------------------- ends and silence

void KeeperProcess::Signal(int signal) {
  if (running_) (void)SendSignal(running_->process.pidfd.get(), signal);
}

std::optional<std::string> KeeperProcess::Reap(int* exit_code) {
  siginfo_t end = {};
  if (!running_ || !ReapOf(running_->process, &end)) return std::nullopt;
  if (Clock::now() - running_->started >= kLongLife) {
    crashes_ = 0;
    back_off_.Reset();
  } else {
    crashes_ = HasCrashed(end) || faulty_ ? crashes_ + 1 : 0;
  }
  const std::string how = DescribeEnd(end);
  // Nobody asks a keeper to end before it shows life, so its exit is a failure. A signal from
  // outside says nothing about the program.
  const bool failed = HasCrashed(end) || faulty_ || (end.si_code == CLD_EXITED && !shows_life_);
  if (failed && IsOnProbation()) GiveUp(absl::StrCat("its first keeper ", how));
  running_.reset();
  if (end.si_code == CLD_EXITED) *exit_code = end.si_status;
  return how;
}

void KeeperProcess::KillFaulty() {
  faulty_ = true;
  Signal(SIGKILL);
}

// While another keeper runs beside this one, the program on probation is the other keeper's.
void KeeperProcess::Prove() {
  const bool is_due =
      IsOnProbation() && shows_life_ && last_sign_ - running_->started >= program_.probation();
  if (is_due) program_.Prove();
}

void KeeperProcess::NoteLife() {
  last_sign_ = Clock::now();
  shows_life_ = true;
  Prove();
}

// Unread orders are no silence: one may be a sign of life that waits for an order that takes long.
bool KeeperProcess::HasUnread() const { return IsReadable(running_->orders.fd()); }

KeeperProcess::Silence KeeperProcess::LookForHang() {
  const bool was_hung = hung_;
  if (runs() && !shows_life_ && Clock::now() - last_sign_ >= kStartTimeout && !HasUnread()) {
    KillFaulty();
  }
  hung_ = runs() && shows_life_ && Clock::now() - last_sign_ >= hang_timeout_ && !HasUnread();
  if (hung_ == was_hung) return Silence::kNone;
  if (hung_ && (kills_hung_ || IsOnProbation())) KillFaulty();
  return hung_ ? Silence::kBegins : Silence::kEnds;
}

std::chrono::milliseconds KeeperProcess::NextPause() {
  const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(back_off_.Next());
  return crashes_ > kCrashesInPassing ? pause : std::min(pause, kMostPause);
}

}  // namespace baton::driver_process
