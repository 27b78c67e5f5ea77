// Starts programs of a brokered service's workers through baton-launch. Only their service manager
// keeps them running.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_BROKERED_PROGRAMS_H_
#define SUPERVISOR_KEEPER_PROGRAMS_BROKERED_PROGRAMS_H_

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "supervisor/driver/workers/spawn_plan.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/programs/program_output.h"
#include "supervisor/keeper/programs/watched_process.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class BrokeredPrograms final : public WorkerPrograms {
 public:
  // `loop` and `driver` outlive it. `batonds_network`: batond's network namespace, if the keeper is
  // in another.
  BrokeredPrograms(boost::asio::io_context& loop, const std::string& launcher, DriverClient& driver,
                   FileDescriptor batonds_network = {});

  // Goes on with the processes that former keepers started, and reads what they print.
  void Restore(DriverClient::HeldByKey& held);

  absl::Status Check(const std::string& path) const override {
    return CheckProgramPath(path, "an executable");
  }
  void Read(pid_t pid, uint32_t uid, uint32_t gid, ProgramDone done) override {
    reader_.Read(pid, uid, gid, std::move(done));
  }
  absl::StatusOr<StartedProgram> Start(const internal::Program& program) override;
  FileDescriptor PidfdOf(pid_t pid) const override;
  std::string Reap(pid_t, int pidfd) override { return driver_process::ReapProgram(pidfd); }
  void OnServing(const internal::Program&) override {}

 private:
  // Drops what the driver holds of the process when it has ended. `started` has no output if the
  // caller of Start() reads it.
  void Watch(StartedProgram started);

  boost::asio::io_context& loop_;
  const std::string launcher_;
  DriverClient& driver_;
  const FileDescriptor batonds_network_;
  ProgramReader reader_;
  std::map<pid_t, std::unique_ptr<WatchedProcess>> held_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_PROGRAMS_BROKERED_PROGRAMS_H_
