#include "supervisor/keeper/program.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/program_start.h"
#include "lib/base/status_macros.h"
#include "supervisor/keeper/program_output.h"

namespace baton::keeper {
namespace {

// baton-launch reads the program there, and reports on this one what went wrong.
constexpr int kInput = STDIN_FILENO;
constexpr std::string_view kField = "exec: ";  // what is wrong with a program's file begins so
constexpr int kErrorDescriptor = 3;
constexpr int kNetworkDescriptor = 4;  // of a namespace that it is to go to

// The parts of a file of /proc that end with NUL each.
std::vector<std::string> ReadParts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> parts;
  for (std::string part; std::getline(file, part, '\0');) parts.push_back(part);
  return parts;
}

std::string ReadLink(const std::string& path) {
  std::array<char, PATH_MAX> target;
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<size_t>(length)) : std::string();
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  return environment;
}

// posix_spawn's actions and attributes, which have to be destroyed.
class SpawnPlan {
 public:
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  void Give(int descriptor, int as) { posix_spawn_file_actions_adddup2(&actions_, descriptor, as); }
  void CloseFrom(int descriptor) {
    posix_spawn_file_actions_addclosefrom_np(&actions_, descriptor);
  }
  absl::StatusOr<pid_t> Spawn(const std::string& program) {
    std::string name = program;
    char* arguments[] = {name.data(), nullptr};
    // Nothing that a worker chose is in effect before its identity is.
    char path[] = "PATH=/usr/bin:/bin";
    char* environment[] = {path, nullptr};
    pid_t pid = 0;
    const int error =
        posix_spawn(&pid, program.c_str(), &actions_, &attributes_, arguments, environment);
    if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot run ", program));
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

absl::StatusOr<internal::Program> ReadProgram(pid_t pid, uint32_t uid, uint32_t gid) {
  const std::string process = absl::StrCat("/proc/", pid, "/");
  const std::vector<std::string> command = ReadParts(process + "cmdline");
  if (command.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the command line of process ", pid, " cannot be read from /proc"));
  }
  internal::Program program;
  program.set_path(ReadLink(process + "exe"));
  if (program.path().empty()) program.set_path(command[0]);
  for (size_t i = 1; i < command.size(); ++i) program.add_arguments(command[i]);
  std::vector<std::string> environment = ReadParts(process + "environ");
  if (environment.empty()) environment = OwnEnvironment();
  for (const std::string& variable : environment) {
    // A service manager's word on descriptors is for the process whose number it names.
    if (IsForOneProcess(variable) || variable.starts_with("LISTEN_PID=")) continue;
    program.add_environment(variable);
  }
  const std::string directory = ReadLink(process + "cwd");
  program.set_directory(directory.empty() ? "/" : directory);
  program.set_uid(uid);
  program.set_gid(gid);
  program.set_in_network_namespace(ReadLink(process + "ns/net") ==
                                   ReadLink("/proc/thread-self/ns/net"));
  return program;
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
  BATON_ASSIGN_OR_RETURN(const FileDescriptor input, MemoryFileWith(program.SerializeAsString()));
  BATON_ASSIGN_OR_RETURN(OutputPipe errors, MakeOutputPipe());
  FileDescriptor network;
  if (batonds_network >= 0 && !program.in_network_namespace()) {
    // Apart from the numbers that are given in the child: they are given one after the other.
    network.Reset(fcntl(batonds_network, F_DUPFD_CLOEXEC, kNetworkDescriptor + 1));
    if (!network) return ErrnoStatus(errno, "F_DUPFD_CLOEXEC (see RLIMIT_NOFILE)");
  }
  BATON_ASSIGN_OR_RETURN(OutputPipe output, MakeOutputPipe());
  SpawnPlan plan;
  plan.Give(input.get(), kInput);
  plan.Give(output.program.get(), STDERR_FILENO);
  plan.Give(errors.program.get(), kErrorDescriptor);
  if (network) plan.Give(network.get(), kNetworkDescriptor);
  plan.CloseFrom(network ? kNetworkDescriptor + 1 : kErrorDescriptor + 1);
  StartedProgram started;
  BATON_ASSIGN_OR_RETURN(started.pid, plan.Spawn(launcher));
  started.output = std::move(output.reader);
  started.entered = std::move(errors.reader);
  // Not reaped yet: the pid cannot be another's.
  started.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, started.pid, 0)));
  if (started.pidfd) return started;
  const absl::Status status = ErrnoStatus(errno, "pidfd_open (see RLIMIT_NOFILE)");
  // It stays a zombie: without a pidfd nothing says when it could be reaped without waiting.
  kill(started.pid, SIGKILL);
  return status;
}

absl::Status ReadEntered(int entered) {
  std::array<char, PIPE_BUF> message;
  const ssize_t length = read(entered, message.data(), message.size());
  if (length <= 0) return absl::OkStatus();
  const std::string why(message.data(), static_cast<size_t>(length));
  return why.starts_with(kField) ? absl::InvalidArgumentError(why)
                                 : absl::FailedPreconditionError(why);
}

std::string ReapProgram(int pidfd) {
  siginfo_t info = {};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0) {
    return "";
  }
  if (info.si_code == CLD_EXITED) return absl::StrCat("ended with status ", info.si_status);
  return absl::StrCat("was killed by signal ", info.si_status, " (", strsignal(info.si_status),
                      ")");
}

}  // namespace baton::keeper
