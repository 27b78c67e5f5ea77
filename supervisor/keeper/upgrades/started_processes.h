// The processes that an upgrade has started, one for each of its new workers.
#ifndef SUPERVISOR_KEEPER_UPGRADES_STARTED_PROCESSES_H_
#define SUPERVISOR_KEEPER_UPGRADES_STARTED_PROCESSES_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/programs/watched_process.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread. A process that is still there when this is
// destroyed runs on, and is reaped all the same.
class StartedProcesses {
 public:
  // Calls `on_end` when a process has ended and is reaped, but not after the destructor. `loop` and
  // `programs` outlive this.
  StartedProcesses(boost::asio::io_context& loop, WorkerPrograms& programs,
                   std::function<void(const internal::StartedWorker&)> on_end);
  ~StartedProcesses();
  StartedProcesses(const StartedProcesses&) = delete;
  StartedProcesses& operator=(const StartedProcesses&) = delete;

  // Starts `count` processes. Calls `done` once, from the loop, but not after the destructor: with
  // OK when all have entered the program, or with the reason why one has not, and then all are
  // killed. List() has those that ended meanwhile, too.
  void Start(const internal::Program& program, uint32_t count,
             std::function<void(const absl::Status&)> done);

  // Goes on with a process that a former keeper has started. `pidfd`: none if it has ended.
  void Watch(const internal::StartedWorker& known, FileDescriptor pidfd);

  // Called when `pid` has attached as this worker, for the first time or again. Returns whether it
  // is one of these processes. A process may be several workers: the next keeper knows it by the
  // first.
  bool NoteAttached(pid_t pid, uint64_t worker_id);

  // Describes how the worker's process ended, even if no notification of its end has come yet.
  // Empty: the process still runs. None: it is not known by this worker.
  std::optional<std::string> HowEnded(uint64_t worker_id);

  // Returns the processes in the order of their starts; not all of them if Start() has failed.
  std::vector<internal::StartedWorker> List() const;
  bool AllEnded() const;

  void SignalUnattached(int signal);
  void SignalAll(int signal);

 private:
  // How long programs may take to be entered, together.
  static constexpr std::chrono::seconds kLaunchTimeout{10};

  struct Launch {
    explicit Launch(boost::asio::io_context& loop) : overdue(loop) {}
    uint32_t waiting = 0;  // for this many programs
    std::function<void(const absl::Status&)> done;
    boost::asio::steady_timer overdue;
  };

  absl::Status Spawn(const internal::Program& program, uint32_t count);
  void AwaitLaunch();
  void AwaitEnd(const std::shared_ptr<WatchedProcess>& process);
  void OnLaunched(const absl::Status& status);

  boost::asio::io_context& loop_;
  WorkerPrograms& programs_;
  const std::shared_ptr<std::function<void(const internal::StartedWorker&)>> on_end_;
  std::vector<std::shared_ptr<WatchedProcess>> processes_;
  std::map<uint64_t, pid_t> pids_;  // of workers that have attached to this keeper
  std::shared_ptr<Launch> launch_;  // under way
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_STARTED_PROCESSES_H_
