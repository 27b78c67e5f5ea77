#include "supervisor/keeper/programs/brokered_programs.h"

#include <poll.h>
#include <signal.h>

#include <boost/asio/post.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"

namespace baton::keeper {
namespace {

constexpr char kHeldProcesses[] = "lasting/process/";
constexpr int kDeathTimeoutMs = 100;
constexpr size_t kHeldDescriptors = 2;  // of a process: its pidfd, and the pipe that it prints to

std::string HeldProcessKey(pid_t pid) { return absl::StrCat(kHeldProcesses, pid); }

void End(const StartedProgram& started) {
  (void)SendSignal(started.pidfd.get(), SIGKILL);
  pollfd end = {started.pidfd.get(), POLLIN, 0};
  (void)poll(&end, 1, kDeathTimeoutMs);
  (void)driver_process::ReapProgram(started.pidfd.get());
}

}  // namespace

BrokeredPrograms::BrokeredPrograms(boost::asio::io_context& loop, const std::string& launcher,
                                   DriverClient& driver, FileDescriptor batonds_network)
    : loop_(loop),
      launcher_(launcher),
      driver_(driver),
      batonds_network_(std::move(batonds_network)),
      reader_(loop, launcher) {}

absl::StatusOr<StartedProgram> BrokeredPrograms::Start(const internal::Program& program) {
  BATON_ASSIGN_OR_RETURN(StartedProgram started,
                         StartProgram(program, launcher_, batonds_network_.get()));
  if (!driver_.Hold(HeldProcessKey(started.pid), "", {started.pidfd.get(), started.output.get()})) {
    End(started);
    return absl::ResourceExhaustedError(
        "the driver does not hold the process for the next keeper (the log says why): it was "
        "ended");
  }
  StartedProgram copy;
  copy.pid = started.pid;
  copy.pidfd = CopyOf(started.pidfd.get());
  Watch(std::move(copy));
  // Enters the program in a later turn of the loop. In this turn the caller has yet to hold what
  // the process is for, and the next keeper has to know that of a process whose program runs.
  boost::asio::post(loop_, [entered = std::make_shared<const FileDescriptor>(
                                CopyOf(started.entered.get()))] { EnterProgram(entered->get()); });
  return started;
}

void BrokeredPrograms::Restore(DriverClient::HeldByKey& held) {
  for (auto& [key, entry] : held) {
    StartedProgram process;
    if (!key.starts_with(kHeldProcesses) || entry.descriptors.size() != kHeldDescriptors ||
        !absl::SimpleAtoi(key.substr(sizeof(kHeldProcesses) - 1), &process.pid)) {
      continue;
    }
    driver_.DealWithHeld(key, [this, &process, &taken = entry] {
      process.pidfd = std::move(taken.descriptors[0]);
      process.output = std::move(taken.descriptors[1]);
      Watch(std::move(process));
    });
  }
}

void BrokeredPrograms::Watch(StartedProgram started) {
  if (!started.pidfd) return;
  const pid_t pid = started.pid;
  auto process = std::make_unique<WatchedProcess>(loop_, *this, std::move(started));
  AwaitReadable(process->pidfd, [this, pid] {
    driver_.Drop(HeldProcessKey(pid));
    held_.erase(pid);
  });
  held_[pid] = std::move(process);
}

FileDescriptor BrokeredPrograms::PidfdOf(pid_t pid) const {
  const auto process = held_.find(pid);
  if (process == held_.end()) return {};
  return CopyOf(process->second->pidfd.native_handle());
}

}  // namespace baton::keeper
