// Takes the place of supervisor/keeper/programs/program.cc: the workers of an upgrade are processes
// as those of fake_processes.h, and nothing is run.
#include "supervisor/keeper/programs/program.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/fuzz/fake_processes.h"

namespace baton::keeper {

// It has ended already.
absl::StatusOr<StartedReading> StartReading(pid_t, const std::string&, int) {
  StartedReading reading;
  reading.pidfd.Reset(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  return reading;
}

absl::StatusOr<internal::Program> TakeReading(const StartedReading&, uint32_t uid, uint32_t gid) {
  internal::Program program;
  program.set_path("/nowhere/before");
  program.add_arguments("--serve");
  program.set_uid(uid);
  program.set_gid(gid);
  return program;
}

absl::StatusOr<bool> TakeMapsFile(const StartedReading&) { return false; }

absl::Status CheckProgramPath(const std::string& path, std::string_view) {
  if (!path.starts_with('/')) return absl::InvalidArgumentError("exec: is no absolute path");
  return absl::OkStatus();
}

// With the pid that every client of the fuzzer has: whoever attaches next is of this program.
absl::StatusOr<StartedProgram> StartProgram(const internal::Program& program, const std::string&,
                                            int) {
  if (program.path().size() > 100) return absl::NotFoundError("exec: no such file");
  StartedProgram started;
  started.pid = getpid();
  started.pidfd = fuzz::FakeProcesses::Start();
  return started;
}

void EnterProgram(int) {}

absl::Status ReadEntered(int) { return absl::OkStatus(); }

std::string ReapProgram(int pidfd) {
  pollfd entry = {pidfd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0 ? "ended with status 0" : "";
}

}  // namespace baton::keeper
