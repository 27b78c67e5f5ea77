#include "supervisor/keeper/programs/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "supervisor/driver/workers/output_lines.h"
#include "supervisor/driver/workers/spawn_plan.h"

namespace baton::keeper {
namespace {

// baton-launch reads the program from kInput. Through kErrorDescriptor it learns that it may enter
// the program, and reports what went wrong.
constexpr int kInput = STDIN_FILENO;
constexpr std::string_view kField = "exec: ";  // begins errors about a program's file
constexpr int kErrorDescriptor = 3;
constexpr int kNetworkDescriptor = 4;  // of a namespace that it is to enter; the next: its own file
constexpr int kMappedDescriptor = 4;   // of a file that a process may map

// execve(2) could not start a program again with a longer command line and environment.
constexpr size_t kMaxReadingBytes = 16 << 20;

// `child` is not reaped yet, so the pid cannot be another's. When no pidfd can be had, the child is
// killed and stays a zombie: nothing says when it could be reaped without waiting.
absl::StatusOr<FileDescriptor> PidfdOf(pid_t child) {
  absl::StatusOr<FileDescriptor> pidfd = OpenPidfd(child);
  if (!pidfd.ok()) kill(child, SIGKILL);
  return pidfd;
}

// Returns an empty result if baton-launch has not written a whole one.
internal::ProgramReading ResultOf(const StartedReading& reading) {
  internal::ProgramReading result;
  struct stat file = {};
  if (fstat(reading.result.get(), &file) != 0) return result;
  std::string text(std::min(static_cast<size_t>(file.st_size), kMaxReadingBytes), '\0');
  const ssize_t length = pread(reading.result.get(), text.data(), text.size(), 0);
  if (length < 0 || !result.ParseFromArray(text.data(), static_cast<int>(length))) result.Clear();
  return result;
}

}  // namespace

absl::StatusOr<StartedReading> StartReading(pid_t process, const std::string& launcher, int file) {
  StartedReading reading;
  BATON_ASSIGN_OR_RETURN(reading.result, MemoryFileWith(""));
  std::vector<std::string> arguments = {absl::StrCat(process)};
  FileDescriptor mapped;
  driver_process::SpawnPlan plan;
  if (file >= 0) {
    BATON_ASSIGN_OR_RETURN(mapped, driver_process::CopyAbove(file, kMappedDescriptor));
    arguments.emplace_back("maps");
  }
  plan.Give(reading.result.get(), kErrorDescriptor);
  if (mapped) plan.Give(mapped.get(), kMappedDescriptor);
  plan.CloseFrom(mapped ? kMappedDescriptor + 1 : kErrorDescriptor + 1);
  BATON_ASSIGN_OR_RETURN(reading.pid, plan.Spawn(launcher, std::move(arguments)));
  BATON_ASSIGN_OR_RETURN(reading.pidfd, PidfdOf(reading.pid));
  return reading;
}

absl::StatusOr<internal::Program> TakeReading(const StartedReading& reading, uint32_t uid,
                                              uint32_t gid) {
  internal::ProgramReading found = ResultOf(reading);
  if (!found.has_program()) {
    return absl::FailedPreconditionError(
        found.error().empty() ? "baton-launch, which reads it, was ended" : found.error());
  }
  internal::Program program = std::move(*found.mutable_program());
  std::vector<std::string> environment(program.environment().begin(), program.environment().end());
  // This process's own.
  for (char** own = environ; program.environment().empty() && *own != nullptr; ++own) {
    environment.emplace_back(*own);
  }
  program.clear_environment();
  for (const std::string& variable : environment) {
    // A service manager describes descriptors for the one process whose number LISTEN_PID has.
    if (IsForOneProcess(variable) || variable.starts_with("LISTEN_PID=")) continue;
    program.add_environment(variable);
  }
  program.set_uid(uid);
  program.set_gid(gid);
  return program;
}

absl::StatusOr<bool> TakeMapsFile(const StartedReading& reading) {
  const internal::ProgramReading found = ResultOf(reading);
  if (found.has_maps_file()) return found.maps_file();
  if (!found.error().empty()) return absl::PermissionDeniedError(found.error());
  return absl::UnavailableError("baton-launch, which reads it, was ended");
}

absl::Status CheckProgramPath(const std::string& path, std::string_view what) {
  const absl::string_view kind(what.data(), what.size());
  if (path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("exec: \"", path, "\" is not the absolute path of ", kind));
  }
  return absl::OkStatus();
}

absl::StatusOr<StartedProgram> StartProgram(const internal::Program& program,
                                            const std::string& launcher, int batonds_network) {
  internal::Program launched = program;
  launched.set_awaits_go_ahead(true);
  BATON_ASSIGN_OR_RETURN(const FileDescriptor input, MemoryFileWith(launched.SerializeAsString()));
  BATON_ASSIGN_OR_RETURN(SocketPair entered, MakeSocketPair(SOCK_STREAM));
  (void)fcntl(entered.ours.get(), F_SETFL, O_NONBLOCK);
  FileDescriptor network;
  if (batonds_network >= 0 && !program.in_network_namespace()) {
    BATON_ASSIGN_OR_RETURN(network, driver_process::CopyAbove(batonds_network, kNetworkDescriptor));
  }
  BATON_ASSIGN_OR_RETURN(Pipe output, driver_process::MakeOutputPipe());
  driver_process::SpawnPlan plan;
  plan.LeaveSession();  // a worker outlives keeper and driver
  plan.Give(input.get(), kInput);
  plan.Give(output.writing.get(), STDERR_FILENO);
  plan.Give(entered.theirs.get(), kErrorDescriptor);
  network ? plan.Give(network.get(), kNetworkDescriptor) : plan.Close(kNetworkDescriptor);
  plan.CloseFrom(kNetworkDescriptor + 1);
  StartedProgram started;
  BATON_ASSIGN_OR_RETURN(started.pid, plan.Spawn(launcher));
  started.output = std::move(output.reading);
  started.entered = std::move(entered.ours);
  BATON_ASSIGN_OR_RETURN(started.pidfd, PidfdOf(started.pid));
  return started;
}

void EnterProgram(int entered) { (void)send(entered, "", 1, MSG_NOSIGNAL); }

absl::Status ReadEntered(int entered) {
  std::array<char, PIPE_BUF> message;
  const ssize_t length = read(entered, message.data(), message.size());
  if (length <= 0) return absl::OkStatus();
  const std::string why(message.data(), static_cast<size_t>(length));
  return why.starts_with(kField) ? absl::InvalidArgumentError(why)
                                 : absl::FailedPreconditionError(why);
}

}  // namespace baton::keeper
