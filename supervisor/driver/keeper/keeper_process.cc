#include "supervisor/driver/keeper/keeper_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <utility>

#include "lib/base/errno_status.h"
#include "lib/base/program_start.h"
#include "lib/base/status_macros.h"

extern "C" {  // which the header of glibc 2.36 forgets
#include <sys/pidfd.h>
}

namespace baton::driver_process {
namespace {

bool HasCrashed(const siginfo_t& end) {
  if (end.si_code == CLD_EXITED) return end.si_status != 0;
  return end.si_status != SIGKILL && end.si_status != SIGTERM && end.si_status != SIGINT;
}

struct SocketPair {
  FileDescriptor ours, its;
};

absl::StatusOr<SocketPair> MakeSocketPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair for the keeper (see RLIMIT_NOFILE)");
  }
  return SocketPair{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace

absl::Status KeeperProcess::Start(const std::string& input) {
  started_ = last_sign_ = Clock::now();
  shows_life_ = hung_ = killed_hung_ = false;
  absl::StatusOr<KeeperImage> found = KeeperImage::Open(program_);
  absl::Status status = found.status();
  if (found.ok() && !(given_up_ && *given_up_ == *found)) {
    given_up_.reset();
    // The same file is opened once.
    image_ = proven_ && *proven_ == *found ? *proven_ : *std::move(found);
    status = Run(program_, input);
    if (status.ok() || !proven_ || *proven_ == *image_) return status;
    GiveUp();
  } else if (!proven_) {
    return status;
  }
  image_ = proven_;
  const absl::Status again = Run(image_->Path(), input);
  return again.ok() || status.ok() ? again : status;
}

absl::Status KeeperProcess::Run(const std::string& program, const std::string& input) {
  BATON_ASSIGN_OR_RETURN(SocketPair orders, MakeSocketPair());
  BATON_ASSIGN_OR_RETURN(SocketPair news, MakeSocketPair());
  SpawnRequest request;
  request.program = program;
  request.input = input;
  request.descriptors = {{kOrdersVariable, orders.its.get()}, {kNewsVariable, news.its.get()}};
  if (network_ >= 0) request.descriptors.emplace_back(kNetworkVariable, network_);
  BATON_ASSIGN_OR_RETURN(process_, Spawn(request));
  orders_.emplace(std::move(orders.ours));
  news_.emplace(std::move(news.ours));
  return absl::OkStatus();
}

void KeeperProcess::Signal(int signal) {
  if (process_) (void)pidfd_send_signal(process_->pidfd.get(), signal, nullptr, 0);
}

std::optional<std::string> KeeperProcess::Reap(int* exit_code) {
  siginfo_t end = {};
  if (!process_ ||
      waitid(P_PIDFD, static_cast<id_t>(process_->pidfd.get()), &end, WEXITED | WNOHANG) != 0 ||
      end.si_pid == 0) {
    return std::nullopt;
  }
  process_.reset();
  orders_.reset();
  news_.reset();
  if (Clock::now() - started_ >= kLongLife) {
    crashes_ = 0;
    back_off_.Reset();
  } else if (HasCrashed(end)) {
    ++crashes_;
  }
  // Before it shows life, nobody has asked it to end.
  JudgeImage(HasCrashed(end) || killed_hung_ || (end.si_code == CLD_EXITED && !shows_life_));
  if (end.si_code == CLD_EXITED) *exit_code = end.si_status;
  return DescribeEnd(end);
}

// Nothing is known of a program whose keeper was ended from outside before it had lived for long.
void KeeperProcess::JudgeImage(bool failed) {
  const bool lived = shows_life_ && Clock::now() - started_ >= kLongLife;
  if (lived) {
    if (!killed_hung_) proven_ = image_;
  } else if (failed && proven_ && !(*proven_ == *image_)) {
    GiveUp();
  }
}

void KeeperProcess::GiveUp() {
  given_up_ = image_;
  given_up_now_ = true;
}

void KeeperProcess::NoteLife() {
  last_sign_ = Clock::now();
  shows_life_ = true;
}

// A sign of life may be among what waits for an order that takes long.
bool KeeperProcess::HasUnread() const {
  pollfd orders = {orders_->fd(), POLLIN, 0};
  return poll(&orders, 1, 0) > 0;
}

KeeperProcess::Silence KeeperProcess::LookForHang() {
  const bool was_hung = hung_;
  if (runs() && !shows_life_ && Clock::now() - last_sign_ >= kStartTimeout && !HasUnread()) {
    killed_hung_ = true;
    Signal(SIGKILL);
  }
  hung_ = runs() && shows_life_ && Clock::now() - last_sign_ >= hang_timeout_ && !HasUnread();
  if (hung_ == was_hung) return Silence::kNone;
  if (hung_ && kills_hung_) {
    killed_hung_ = true;
    Signal(SIGKILL);
  }
  return hung_ ? Silence::kBegins : Silence::kEnds;
}

std::chrono::milliseconds KeeperProcess::NextPause() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(back_off_.Next());
}

}  // namespace baton::driver_process
