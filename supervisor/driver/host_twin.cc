#include "supervisor/driver/host_twin.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/driver/workers/forked_child.h"

namespace baton::driver_process {
namespace {

// A process that dies sooner after it has followed another has died early. What kills so many in a
// row would kill the next one, too.
constexpr uint64_t kEarlyNs = 100'000'000;
constexpr uint32_t kMostEarlyDeaths = 20;

constexpr size_t kSpareDescriptors = 8;

bool ReapOne(const FileDescriptor& pidfd) {
  siginfo_t end = {};
  return waitid(P_PIDFD, static_cast<id_t>(pidfd.get()), &end, WEXITED | WNOHANG) != 0 ||
         end.si_pid != 0;
}

}  // namespace

absl::StatusOr<HostTwin> HostTwin::Make(std::function<absl::Status(bool)> show,
                                        std::function<void()> begin_take_over) {
  BATON_ASSIGN_OR_RETURN(auto board, SharedArray<Board>::Make(1));
  return HostTwin(std::move(show), std::move(begin_take_over), std::move(board));
}

absl::Status HostTwin::Show(bool shown) {
  BATON_RETURN_IF_ERROR(boards_.SetInherited(shown));
  return show_(shown);
}

absl::StatusOr<HostTwin::Side> HostTwin::Renew(const std::function<void()>& begin) {
  const absl::Status shown = Show(true);
  const uint64_t number = NewNumber();
  absl::StatusOr<ForkedChild> twin =
      shown.ok() ? ForkTwin(number, begin) : absl::StatusOr<ForkedChild>(shown);
  const bool follows = twin.ok() && twin->pid == 0;
  if (follows) BeginToFollow();
  // Both processes come here.
  const absl::Status hidden = Show(false);
  if (follows) return Side::kTwin;
  BATON_RETURN_IF_ERROR(twin.status());
  BATON_RETURN_IF_ERROR(hidden);
  board().heir.store(number);
  Replace(*std::move(twin));
  return Side::kOriginal;
}

// Returns in the twin, with pid 0, when it has to follow.
absl::StatusOr<ForkedChild> HostTwin::ForkTwin(uint64_t number,
                                               const std::function<void()>& begin) {
  BATON_ASSIGN_OR_RETURN(const FileDescriptor original, OpenPidfd(getpid()));
  absl::StatusOr<ForkedChild> twin = Fork();
  if (!twin.ok() || twin->pid != 0) return twin;
  begin();
  AwaitDeath(original, number);
  return twin;
}

// A process that takes over has a twin before it takes its first step. If it dies, the twin comes
// to the same place, and forks another one.
void HostTwin::BeginToFollow() {
  for (;;) {
    begin_take_over_();
    const uint64_t number = NewNumber();
    board().heir.store(number);
    absl::StatusOr<ForkedChild> next = ForkTwin(number, [] {});
    if (next.ok() && next->pid == 0) continue;
    if (next.ok()) Replace(*std::move(next));
    return;
  }
}

void HostTwin::Replace(ForkedChild twin) {
  EndTwin();
  pid_ = twin.pid;
  pidfd_ = std::move(twin.pidfd);
}

// In the twin. Returns when it has to follow. All descriptors of the dead process are closed then.
void HostTwin::AwaitDeath(const FileDescriptor& original, uint64_t number) {
  prctl(PR_SET_NAME, "baton-twin");
  pidfd_.Reset();
  ended_.clear();
  pid_ = 0;
  // Descriptors are free then for what the takeover needs, however many the process may have.
  std::array<FileDescriptor, kSpareDescriptors> spare;
  for (FileDescriptor& one : spare) one = CopyOf(original.get());
  pollfd end = {original.get(), POLLIN, 0};
  while (poll(&end, 1, -1) <= 0) {
  }
  Board& shared = board();
  if (shared.heir.load() != number) _exit(0);
  const uint64_t now = MonotonicNanoseconds();
  const bool early = now - shared.followed_ns.exchange(now) < kEarlyNs;
  shared.early_deaths.store(early ? shared.early_deaths.load() + 1 : 0);
  if (shared.early_deaths.load() > kMostEarlyDeaths) _exit(1);
  prctl(PR_SET_NAME, "baton-driver");
}

void HostTwin::End() {
  board().heir.store(0);
  EndTwin();
}

void HostTwin::EndTwin() {
  if (!pidfd_) return;
  (void)SendSignal(pidfd_.get(), SIGKILL);
  ended_.push_back(std::move(pidfd_));
  pid_ = 0;
}

// A follower reads nothing of a note that was not finished.
void HostTwin::Note(std::string_view what) {
  Board& shared = board();
  shared.noted_bytes.store(0);
  if (what.size() > kMostNoted) return;
  std::memcpy(shared.noted, what.data(), what.size());
  shared.noted_bytes.store(static_cast<uint32_t>(what.size()));
}

std::string HostTwin::noted() const { return std::string(board().noted, board().noted_bytes); }

bool HostTwin::Reap() {
  ReapEnded();
  if (!pidfd_ || !ReapOne(pidfd_)) return false;
  pidfd_.Reset();
  pid_ = 0;
  return true;
}

void HostTwin::KillIfStopped() const {
  if (!pidfd_) return;
  std::string stat;
  std::getline(std::ifstream(absl::StrCat("/proc/", pid_, "/stat")), stat);
  const size_t behind_name = stat.rfind(") ");
  if (behind_name == std::string::npos || stat[behind_name + 2] != 'T') return;
  (void)SendSignal(pidfd_.get(), SIGKILL);
}

void HostTwin::ReapEnded() { std::erase_if(ended_, ReapOne); }

}  // namespace baton::driver_process
