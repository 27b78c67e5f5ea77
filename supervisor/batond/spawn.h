// Starts the programs that batond, or a service's driver, keeps running.
#ifndef SUPERVISOR_BATOND_SPAWN_H_
#define SUPERVISOR_BATOND_SPAWN_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/batond/program_file.h"

namespace baton {

// The user that a program runs as. It has no supplementary groups.
struct ProgramUser {
  uid_t uid = 0;
  gid_t gid = 0;
};

struct SpawnRequest {
  std::string program;                 // path, and its first argument
  std::optional<ProgramFile> file;     // the file to run; none: the one at `program`
  std::vector<std::string> arguments;  // after the first
  std::string input;                   // what it reads from standard input
  // Environment variables that carry the number of an inherited descriptor, and the descriptor.
  std::vector<std::pair<std::string, int>> descriptors;
  int standard_error = -1;  // -1: the caller's
  // The program becomes this user for good. It has no capability then, and executing another
  // program gives it none.
  std::optional<ProgramUser> user;
  // The kernel kills the process when the caller dies, in whatever way.
  bool dies_with_us = true;
  // Spawn gives up a program that is not entered by then, because reading it from a file system
  // that does not answer would take for ever. The caller does nothing else meanwhile, and drivers
  // wait for batond for 5 s.
  std::chrono::milliseconds enter_timeout{3'000};
};

struct SpawnedProcess {
  pid_t pid = -1;
  FileDescriptor pidfd;
};

// Says how a process ended, from what waitid(2) filled: "was killed by signal 9 (Killed)".
std::string DescribeEnd(const siginfo_t& end);

// Runs `request.program` with default signals, in a process group of its own, so that a terminal's
// Ctrl-C reaches the caller alone.
//
// A service's driver outlives batond, because connections end with it. The next batond finds it by
// its lock (child_lock.h). Control dies with batond, and a service's keeper dies with its driver.
// The next batond, or driver, starts another.
//
// Returns after the program was entered. An error says why it could not be; Spawn has then killed
// the process, and refuses its program until it has died (left_behind.h). Only the main thread may
// call Spawn: for dies_with_us the kernel watches the *thread* that forked.
absl::StatusOr<SpawnedProcess> Spawn(const SpawnRequest& request);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_SPAWN_H_
