#include "supervisor/keeper/started_processes.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"

namespace baton::keeper {

StartedProcesses::StartedProcesses(boost::asio::io_context& loop, WorkerPrograms& programs,
                                   std::function<void(const StartedProcess&)> on_end)
    : loop_(loop),
      programs_(programs),
      on_end_(std::make_shared<std::function<void(const StartedProcess&)>>(std::move(on_end))) {}

StartedProcesses::~StartedProcesses() = default;

absl::Status StartedProcesses::Start(const internal::Program& program, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    absl::StatusOr<StartedProgram> started = programs_.Start(program);
    if (!started.ok()) {
      SignalAll(SIGKILL);
      return started.status();
    }
    processes_.push_back(std::make_shared<WatchedProcess>(loop_, *std::move(started)));
    Watch(processes_.back());
  }
  return absl::OkStatus();
}

// Keeps it until it has ended, whatever becomes of us: it is ours to reap.
void StartedProcesses::Watch(const std::shared_ptr<WatchedProcess>& process) {
  process->pidfd.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                            [process, told = std::weak_ptr(on_end_)](const auto& error) {
                              if (error) return;
                              process->Reap();
                              if (const auto on_end = told.lock()) (*on_end)(process->known);
                            });
}

bool StartedProcesses::NoteAttached(pid_t pid, uint64_t worker_id) {
  for (const auto& process : processes_) {
    StartedProcess& known = process->known;
    if (known.pid != pid || known.worker_id != 0 || !known.how_ended.empty()) continue;
    known.worker_id = worker_id;
    return true;
  }
  return false;
}

std::string StartedProcesses::HowEnded(uint64_t worker_id) {
  for (const auto& process : processes_) {
    if (process->known.worker_id != worker_id) continue;
    process->Reap();
    return process->known.how_ended;
  }
  return "";
}

std::vector<StartedProcess> StartedProcesses::List() const {
  std::vector<StartedProcess> processes;
  for (const auto& process : processes_) processes.push_back(process->known);
  return processes;
}

bool StartedProcesses::AllEnded() const {
  return std::none_of(processes_.begin(), processes_.end(),
                      [](const auto& process) { return process->known.how_ended.empty(); });
}

void StartedProcesses::SignalUnattached(int signal) {
  for (const auto& process : processes_) {
    if (process->known.worker_id == 0) process->Signal(signal);
  }
}

void StartedProcesses::SignalAll(int signal) {
  for (const auto& process : processes_) process->Signal(signal);
}

}  // namespace baton::keeper
