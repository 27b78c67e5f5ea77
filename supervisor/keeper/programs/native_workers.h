// Has the driver fork the workers of a native service, and others in the place of those that end. A
// program is a shared object with its arguments.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_NATIVE_WORKERS_H_
#define SUPERVISOR_KEEPER_PROGRAMS_NATIVE_WORKERS_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/programs/watched_process.h"
#include "supervisor/keeper/sessions/worker_sessions.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread. The workers are the driver's, and outlive it.
class NativeWorkers final : public WorkerPrograms {
 public:
  // All references outlive it.
  NativeWorkers(const CommonParts& parts, WorkerSessions& sessions);

  // Goes on with the former keeper's processes and program. REQUIRES: the sessions are restored.
  absl::Status Restore(const DriverClient::HeldByKey& held);

  // Ends the processes whose program neither is the one that serves nor owns a shard. The program
  // of an upgrade that failed and could not be taken back owns some. REQUIRES: no upgrade is under
  // way.
  void EndUnused();

  // Has workers forked until as many as the configuration says have the program that serves.
  void KeepRunning();

  absl::Status Check(const std::string& path) const override;
  void Read(pid_t pid, uint32_t uid, uint32_t gid, ProgramDone done) override;
  absl::StatusOr<StartedProgram> Start(const internal::Program& program) override;
  FileDescriptor PidfdOf(pid_t pid) const override;
  std::string Reap(pid_t pid, int pidfd) override;
  void OnServing(const internal::Program& program) override;

 private:
  struct Process {
    explicit Process(boost::asio::io_context& loop) : pidfd(loop), overdue(loop) {}
    internal::Program program;
    uint64_t worker_id = 0;
    boost::asio::posix::stream_descriptor pidfd;
    boost::asio::steady_timer overdue;  // once it was asked to end
  };

  absl::StatusOr<DriverClient::ForkedWorker> ForkAtFreePlace(const internal::Program& program);
  // Watches the process, and accepts its session if it has not attached.
  void Watch(DriverClient::ForkedWorker fork);
  void EndOthers(const std::set<uint64_t>& owners);
  void OnEnded(pid_t pid);
  void End(pid_t pid, Process& process);
  void StartLater();

  const CommonParts parts_;
  internal::Program program_;  // that serves
  const uint32_t wanted_;
  WorkerSessions& sessions_;
  boost::asio::steady_timer pause_;
  RestartDelay pause_length_;
  bool pausing_ = false;
  std::map<pid_t, std::unique_ptr<Process>> processes_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_PROGRAMS_NATIVE_WORKERS_H_
