// baton-launch: becomes a worker's program. A keeper starts it, because it waits for file systems
// and for the database of users, for which a keeper does not wait. It reads a
// baton.internal.Program from standard input, takes on the worker's identity before anything that
// the worker chose (its environment, for one) can have an effect, and executes the program. If the
// Program says so, it first waits for a byte through descriptor 3, a socket: by then the service's
// driver knows its pid. It ends if the keeper dies before. It writes errors to descriptor 3.
// Descriptor 4, if there is one, is the network namespace that it enters first. Descriptor 5, if
// there is one, is its own file, by which the keeper has executed it.
//
// With the number of a process as its argument it reads what program that runs, and writes a
// baton.internal.ProgramReading to descriptor 3. With "maps" as a second argument it reads instead
// whether the process maps the file of descriptor 4.
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "proto/baton/internal/keeper.pb.h"

namespace {

using baton::ErrnoStatus;
using baton::PointersTo;

constexpr int kErrorDescriptor = 3;
constexpr int kNetworkDescriptor = 4;
constexpr int kMappedDescriptor = 4;
constexpr int kOwnFileDescriptor = 5;
// The most that is read of a command line or an environment, with a pointer to each part: more than
// execve(2) takes of both. The process says where they are in its memory, and may say anything.
constexpr size_t kMaxReadBytes = 6 << 20;
// The most address space that a reader may have.
#ifdef BATON_SANITIZED
constexpr rlim_t kMaxReaderBytes = RLIM_INFINITY;  // shadow memory alone is terabytes
#else
constexpr rlim_t kMaxReaderBytes = 512 << 20;
#endif

absl::Status TakeNetwork() {
  if (fcntl(kNetworkDescriptor, F_SETFD, FD_CLOEXEC) != 0) return absl::OkStatus();
  if (setns(kNetworkDescriptor, CLONE_NEWNET) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "cannot go to batond's network namespace");
}

absl::Status TakeIdentity(uid_t uid, gid_t gid) {
  if (uid == geteuid() && gid == getegid()) return absl::OkStatus();
  const passwd* user = getpwuid(uid);
  // A uid without an entry has no groups besides its own.
  if ((user != nullptr ? initgroups(user->pw_name, gid) : setgroups(0, nullptr)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot take on the groups of uid ", uid));
  }
  if (setgid(gid) != 0) return ErrnoStatus(errno, absl::StrCat("cannot become gid ", gid));
  if (setuid(uid) != 0) return ErrnoStatus(errno, absl::StrCat("cannot become uid ", uid));
  return absl::OkStatus();
}

// Says why the file may not be run. Called with the identity that runs it.
absl::Status CheckFile(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return ErrnoStatus(errno, absl::StrCat("exec: ", path));
  if (!S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("exec: ", path, " is not a file"));
  }
  if ((file.st_mode & 0111) != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("exec: ", path, " is not an executable: see its mode"));
}

// Returns only with an error.
absl::Status Become(const baton::internal::Program& program) {
  BATON_RETURN_IF_ERROR(TakeNetwork());
  BATON_RETURN_IF_ERROR(TakeIdentity(program.uid(), program.gid()));
  if (chdir(program.directory().c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot change to directory ", program.directory()));
  }
  BATON_RETURN_IF_ERROR(CheckFile(program.path()));
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) return ErrnoStatus(errno, "/dev/null");
  if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return ErrnoStatus(errno, "standard output");
  // Nobody reads the program's output after the service's driver has died. SIGPIPE must not end it
  // then.
  (void)signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> arguments = {program.path()};
  arguments.insert(arguments.end(), program.arguments().begin(), program.arguments().end());
  std::vector<std::string> environment(program.environment().begin(), program.environment().end());
  execve(program.path().c_str(), PointersTo(arguments).data(), PointersTo(environment).data());
  return ErrnoStatus(errno, absl::StrCat("cannot run ", program.path()));
}

// Returns the parts of a file of /proc, each of which ends with NUL.
absl::StatusOr<std::vector<std::string>> ReadParts(const std::string& path) {
  std::vector<std::string> parts;
  std::ifstream file(path, std::ios::binary);
  std::array<char, 64 << 10> piece;
  std::string part;
  for (size_t bytes = 0; file.read(piece.data(), piece.size()) || file.gcount() > 0;) {
    for (const char letter : std::string_view(piece.data(), static_cast<size_t>(file.gcount()))) {
      if (letter != '\0') {
        part += letter;
      } else {
        parts.push_back(std::exchange(part, ""));
        bytes += sizeof(char*);
      }
    }
    bytes += static_cast<size_t>(file.gcount());
    if (bytes > kMaxReadBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " is longer than a program that is started may have it"));
    }
  }
  if (!part.empty()) parts.push_back(part);
  return parts;
}

std::string ReadLink(const std::string& path) {
  std::array<char, PATH_MAX> target;
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<size_t>(length)) : std::string();
}

absl::StatusOr<baton::internal::Program> ReadProgram(const std::string& pid) {
  const std::string process = absl::StrCat("/proc/", pid, "/");
  baton::internal::Program program;
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> command, ReadParts(process + "cmdline"));
  program.set_path(ReadLink(process + "exe"));
  if (program.path().empty() && !command.empty()) program.set_path(command[0]);
  for (size_t i = 1; i < command.size(); ++i) program.add_arguments(command[i]);
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> environment,
                         ReadParts(process + "environ"));
  for (const std::string& variable : environment) program.add_environment(variable);
  const std::string directory = ReadLink(process + "cwd");
  program.set_directory(directory.empty() ? "/" : directory);
  program.set_in_network_namespace(ReadLink(process + "ns/net") == ReadLink("/proc/self/ns/net"));
  // Reads the command line again, because a process that ends shows half of all this for a moment,
  // and then nothing.
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> again, ReadParts(process + "cmdline"));
  if (!command.empty() && !again.empty()) return program;
  return absl::NotFoundError(
      absl::StrCat("the command line of process ", pid, " cannot be read from /proc"));
}

baton::internal::ProgramReading ReadBounded(const std::string& pid) {
  const rlimit limit = {kMaxReaderBytes, kMaxReaderBytes};
  setrlimit(RLIMIT_AS, &limit);
  baton::internal::ProgramReading reading;
  absl::StatusOr<baton::internal::Program> program = ReadProgram(pid);
  if (program.ok()) {
    *reading.mutable_program() = *std::move(program);
  } else {
    reading.set_error(std::string(baton::MessageOf(program.status())));
  }
  return reading;
}

// Returns whether process `pid` maps `file`; false if it is gone. kPermissionDenied: this process
// may not read the other's mappings.
absl::StatusOr<bool> Maps(const std::string& pid, int file) {
  struct stat info = {};
  if (fstat(file, &info) != 0) return baton::ErrnoStatus(errno, "fstat of the file");
  const std::string device = absl::StrFormat("%02x:%02x", major(info.st_dev), minor(info.st_dev));
  const std::string inode = absl::StrCat(info.st_ino);
  const std::string path = absl::StrCat("/proc/", pid, "/maps");
  errno = 0;
  std::ifstream maps(path);
  if (!maps && (errno == EACCES || errno == EPERM)) return absl::PermissionDeniedError(path);
  for (std::string line; std::getline(maps, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() > 4 && words[3] == device && words[4] == inode) return true;
  }
  return false;
}

baton::internal::ProgramReading ReadMaps(const std::string& pid) {
  baton::internal::ProgramReading reading;
  const absl::StatusOr<bool> maps = Maps(pid, kMappedDescriptor);
  if (maps.ok()) {
    reading.set_maps_file(*maps);
  } else if (absl::IsPermissionDenied(maps.status())) {
    reading.set_error(std::string(baton::MessageOf(maps.status())));
  }
  return reading;
}

}  // namespace

int main(int argc, char** argv) {
  // The number of the descriptor would be the process's name.
  prctl(PR_SET_NAME, "baton-launch");
  if (argc > 1) {
    const auto reading = argc > 2 ? ReadMaps(argv[1]) : ReadBounded(argv[1]);
    return reading.SerializeToFileDescriptor(kErrorDescriptor) ? 0 : 1;
  }
  fcntl(kErrorDescriptor, F_SETFD, FD_CLOEXEC);
  fcntl(kOwnFileDescriptor, F_SETFD, FD_CLOEXEC);
  const std::string text((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  baton::internal::Program program;
  absl::Status status =
      absl::InvalidArgumentError("standard input is not a Program: keepers start this program");
  if (program.ParseFromString(text)) {
    char go_ahead;
    if (program.awaits_go_ahead() && read(kErrorDescriptor, &go_ahead, 1) != 1) return 127;
    status = Become(program);
  }
  const std::string message(baton::MessageOf(status));
  (void)!write(kErrorDescriptor, message.data(), message.size());
  return 127;
}
