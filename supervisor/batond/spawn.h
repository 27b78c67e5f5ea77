// Starts the programs that batond keeps running.
#ifndef SUPERVISOR_BATOND_SPAWN_H_
#define SUPERVISOR_BATOND_SPAWN_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// The user that a program runs as. It has no supplementary groups.
struct ProgramUser {
  uid_t uid = 0;
  gid_t gid = 0;
};

struct SpawnRequest {
  std::string program;  // path
  std::string input;    // what it reads from standard input
  // Environment variables that carry the number of an inherited descriptor, and the descriptor.
  std::vector<std::pair<std::string, int>> descriptors;
  std::vector<int> inherited;  // descriptors that it need not know about
  int standard_error = -1;     // -1: ours
  // The program becomes this user for good. It has no capability then, and executing another
  // program gives it none.
  std::optional<ProgramUser> user;
  // The kernel kills it when we die, however we die.
  bool dies_with_us = true;
  // A program that is not entered by then is given up. Reading it from a file system that does not
  // answer takes for ever. Keepers wait for 5 s for batond, which does nothing else meanwhile.
  std::chrono::milliseconds enter_timeout{3'000};
};

struct SpawnedProcess {
  pid_t pid = -1;
  FileDescriptor pidfd;
};

// Runs `request.program` in a process group of its own (a terminal's Ctrl-C reaches us alone) with
// default signals.
//
// A keeper outlives us, because connections end with it; the next batond finds it by its lock
// (child_lock.h). Control dies with us: it keeps nothing, and the next batond starts another.
//
// Returns after the program was entered; an error tells why it could not be. The process is killed
// then. As long as one does not die of that, its program is refused (left_behind.h). Only from the
// main thread of a single-threaded process: the kernel sends the signal when the *thread* ends that
// forked.
absl::StatusOr<SpawnedProcess> Spawn(const SpawnRequest& request);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_SPAWN_H_
