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
  std::string program;                 // path; its first argument, too
  std::optional<ProgramFile> file;     // that is run; none: what is at `program`
  std::vector<std::string> arguments;  // after the first
  std::string input;                   // what it reads from standard input
  // Environment variables that carry the number of an inherited descriptor, and the descriptor.
  std::vector<std::pair<std::string, int>> descriptors;
  int standard_error = -1;  // -1: ours
  // The program becomes this user for good. It has no capability then, and executing another
  // program gives it none.
  std::optional<ProgramUser> user;
  // The kernel kills it when we die, however we die.
  bool dies_with_us = true;
  // A program that is not entered by then is given up. Reading it from a file system that does not
  // answer takes for ever. The caller does nothing else meanwhile. Drivers wait for batond for
  // 5 s.
  std::chrono::milliseconds enter_timeout{3'000};
};

struct SpawnedProcess {
  pid_t pid = -1;
  FileDescriptor pidfd;
};

// Says how a process ended, from what waitid(2) filled: "was killed by signal 9 (Killed)".
std::string DescribeEnd(const siginfo_t& end);

// Runs `request.program` in a process group of its own (a terminal's Ctrl-C reaches us alone) with
// default signals.
//
// A service's driver outlives batond, because connections end with it. The next batond finds it by
// its lock (child_lock.h). Control dies with batond, and a service's keeper dies with its driver.
// The next batond, or driver, starts another.
//
// Returns after the program was entered; an error tells why it could not be. The process is killed
// then. As long as one does not die of that, its program is refused (left_behind.h). Only the main
// thread may call it: the kernel sends the signal when the *thread* ends that forked.
absl::StatusOr<SpawnedProcess> Spawn(const SpawnRequest& request);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_SPAWN_H_
