// The programs of a brokered service's workers: any, started through baton-launch. Nobody but their
// service manager keeps them running.
#ifndef SUPERVISOR_KEEPER_BROKERED_PROGRAMS_H_
#define SUPERVISOR_KEEPER_BROKERED_PROGRAMS_H_

#include <boost/asio/io_context.hpp>
#include <string>
#include <utility>

#include "supervisor/keeper/program.h"
#include "supervisor/keeper/program_reader.h"

namespace baton::keeper {

class BrokeredPrograms final : public WorkerPrograms {
 public:
  // `loop` outlives it. `batonds_network`: of a keeper that is in another network namespace.
  BrokeredPrograms(boost::asio::io_context& loop, const std::string& launcher,
                   FileDescriptor batonds_network = {})
      : launcher_(launcher),
        batonds_network_(std::move(batonds_network)),
        reader_(loop, launcher) {}
  absl::Status Check(const std::string& path) const override {
    return CheckProgramPath(path, "an executable");
  }
  void Read(pid_t pid, uint32_t uid, uint32_t gid, ProgramDone done) override {
    reader_.Read(pid, uid, gid, std::move(done));
  }
  absl::StatusOr<StartedProgram> Start(const internal::Program& program) override {
    return StartProgram(program, launcher_, batonds_network_.get());
  }
  void OnServing(const internal::Program&) override {}

 private:
  const std::string launcher_;
  const FileDescriptor batonds_network_;
  ProgramReader reader_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_BROKERED_PROGRAMS_H_
