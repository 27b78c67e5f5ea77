#include "supervisor/keeper/upgrades/started_processes.h"

#include <signal.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"

namespace baton::keeper {

StartedProcesses::StartedProcesses(boost::asio::io_context& loop, WorkerPrograms& programs,
                                   std::function<void(const internal::StartedWorker&)> on_end)
    : loop_(loop),
      programs_(programs),
      on_end_(std::make_shared<std::function<void(const internal::StartedWorker&)>>(
          std::move(on_end))) {}

StartedProcesses::~StartedProcesses() = default;

void StartedProcesses::Start(const internal::Program& program, uint32_t count,
                             std::function<void(const absl::Status&)> done) {
  launch_ = std::make_shared<Launch>(loop_);
  launch_->waiting = count;
  launch_->done = std::move(done);
  if (const absl::Status status = Spawn(program, count); !status.ok()) {
    SignalAll(SIGKILL);  // before the loop lets those that were started run the program
    boost::asio::post(loop_, [this, status, launch = std::weak_ptr(launch_)] {
      if (launch.lock()) OnLaunched(status);
    });
    return;
  }
  AwaitLaunch();
}

absl::Status StartedProcesses::Spawn(const internal::Program& program, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    BATON_ASSIGN_OR_RETURN(StartedProgram started, programs_.Start(program));
    processes_.push_back(std::make_shared<WatchedProcess>(loop_, programs_, std::move(started)));
    AwaitEnd(processes_.back());
  }
  return absl::OkStatus();
}

void StartedProcesses::AwaitLaunch() {
  for (const auto& process : processes_) {
    process->AwaitEntered([this, launch = std::weak_ptr(launch_)](const auto& status) {
      const auto alive = launch.lock();
      if (alive && (!status.ok() || --alive->waiting == 0)) OnLaunched(status);
    });
  }
  After(launch_->overdue, kLaunchTimeout, [this, launch = std::weak_ptr(launch_)] {
    if (!launch.lock()) return;
    OnLaunched(absl::DeadlineExceededError(
        absl::StrCat("baton-launch has not entered the program for ", kLaunchTimeout.count(),
                     " s: its file system, or the database of users, does not answer")));
  });
}

// The callback may destroy this object.
void StartedProcesses::OnLaunched(const absl::Status& status) {
  if (!status.ok()) SignalAll(SIGKILL);
  const std::shared_ptr<Launch> launch = std::move(launch_);
  launch->overdue.cancel();
  launch->done(status);
}

// Keeps the process object until its process has ended, even if this object is destroyed: the
// keeper has to reap it.
void StartedProcesses::AwaitEnd(const std::shared_ptr<WatchedProcess>& process) {
  AwaitReadable(process->pidfd, [process, told = std::weak_ptr(on_end_)] {
    process->Reap();
    if (const auto on_end = told.lock()) (*on_end)(process->known);
  });
}

void StartedProcesses::Watch(const internal::StartedWorker& known, FileDescriptor pidfd) {
  StartedProgram program;
  program.pid = known.pid();
  const bool runs = pidfd && known.how_ended().empty();
  program.pidfd = std::move(pidfd);
  auto process = std::make_shared<WatchedProcess>(loop_, programs_, std::move(program));
  process->known = known;
  if (!runs && known.how_ended().empty()) process->known.set_how_ended("ended");
  processes_.push_back(process);
  if (runs) AwaitEnd(process);
}

bool StartedProcesses::NoteAttached(pid_t pid, uint64_t worker_id) {
  for (const auto& process : processes_) {
    internal::StartedWorker& known = process->known;
    if (known.pid() != pid || !known.how_ended().empty()) continue;
    if (known.worker_id() == 0) known.set_worker_id(worker_id);
    pids_[worker_id] = pid;
    return true;
  }
  return false;
}

std::optional<std::string> StartedProcesses::HowEnded(uint64_t worker_id) {
  const auto attached = pids_.find(worker_id);
  for (const auto& process : processes_) {
    const bool is_its = attached == pids_.end() ? process->known.worker_id() == worker_id
                                                : process->known.pid() == attached->second;
    if (!is_its) continue;
    process->Reap();
    return process->known.how_ended();
  }
  return std::nullopt;
}

std::vector<internal::StartedWorker> StartedProcesses::List() const {
  std::vector<internal::StartedWorker> processes;
  for (const auto& process : processes_) processes.push_back(process->known);
  return processes;
}

bool StartedProcesses::AllEnded() const {
  return absl::c_none_of(processes_,
                         [](const auto& process) { return process->known.how_ended().empty(); });
}

void StartedProcesses::SignalUnattached(int signal) {
  for (const auto& process : processes_) {
    if (process->known.worker_id() == 0) process->Signal(signal);
  }
}

void StartedProcesses::SignalAll(int signal) {
  for (const auto& process : processes_) process->Signal(signal);
}

}  // namespace baton::keeper
