#include "supervisor/driver/keeper_process.h"

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

// A keeper that lived for less did not get on.
constexpr std::chrono::seconds kLongLife(5);

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
  BATON_ASSIGN_OR_RETURN(SocketPair orders, MakeSocketPair());
  BATON_ASSIGN_OR_RETURN(SocketPair news, MakeSocketPair());
  SpawnRequest request;
  request.program = program_;
  request.input = input;
  request.descriptors = {{kOrdersVariable, orders.its.get()}, {kNewsVariable, news.its.get()}};
  if (network_ >= 0) request.descriptors.emplace_back(kNetworkVariable, network_);
  started_ = last_sign_ = Clock::now();
  shows_life_ = hung_ = false;
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
  if (end.si_code == CLD_EXITED) *exit_code = end.si_status;
  return DescribeEnd(end);
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
  hung_ = runs() && shows_life_ && Clock::now() - last_sign_ >= hang_timeout_ && !HasUnread();
  if (hung_ == was_hung) return Silence::kNone;
  if (hung_ && kills_hung_) Signal(SIGKILL);
  return hung_ ? Silence::kBegins : Silence::kEnds;
}

std::chrono::milliseconds KeeperProcess::NextPause() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(back_off_.Next());
}

}  // namespace baton::driver_process
