// Starts the programs that batond, or a service's driver, keeps running, from executable files that
// stay open.
#ifndef SUPERVISOR_BATOND_SPAWN_H_
#define SUPERVISOR_BATOND_SPAWN_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/program_start.h"

namespace baton {

// Environment variables that carry the number of an inherited descriptor, and the descriptor.
using InheritedDescriptors = std::vector<std::pair<std::string, int>>;

// An open executable file, which can be run even if another file has taken its place.
class ProgramFile {
 public:
  // Opens the file that is at `path` now, and the helpers that lie beside it: all are of one
  // release. A program that is not given a helper looks for it itself.
  static absl::StatusOr<ProgramFile> Open(const std::string& path, HelperPrograms helpers = {});

  int descriptor() const { return file_->get(); }
  // Returns a path to the open file, for this process and its children.
  std::string Path() const;
  // Adds what the program inherits to have its helpers' files (OpenHelper).
  void GiveHelpers(InheritedDescriptors* inherited) const;

  // Returns whether both are the same file with the same content, with the same helpers.
  bool operator==(const ProgramFile& other) const;

 private:
  std::shared_ptr<FileDescriptor> file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int64_t changed_ns_ = 0;  // modification time
  struct Helper;
  std::vector<Helper> helpers_;  // that could be opened
};

struct ProgramFile::Helper {
  const char* variable;
  ProgramFile file;

  bool operator==(const Helper& other) const { return file == other.file; }
};

// Says why `program`, a path, was given up: "the new program ... is given up, because it ...".
std::string DescribeGivenUp(const std::string& program, const std::string& why);

// The program of a process that is started again and again. A package may put another file at its
// path at any time. That file is not run until an operator replaces the process. Thread-compatible.
class ReplaceableProgram {
 public:
  // `helpers`: see ProgramFile::Open. They are replaced with the program. `first`: path of the file
  // that is run first, if it is another one.
  explicit ReplaceableProgram(std::string path, HelperPrograms helpers = {}, std::string first = "")
      : path_(std::move(path)), helpers_(helpers), first_(std::move(first)) {}

  const std::string& path() const { return path_; }

  // Returns the file to run: the one on probation, else the one that was proven last, else the
  // first one that was opened.
  absl::StatusOr<ProgramFile> ToRun();
  // The same, without the one on probation.
  absl::StatusOr<ProgramFile> Proven();
  // Puts the file that is at the path now on probation, unless it is the file that was run before
  // the probation. The caller ends the probation with Prove once a process has served for
  // probation(), which is at least kLeastProbation. `running`: the file that was run before, if
  // this object did not start it.
  absl::Status Replace(std::chrono::milliseconds probation,
                       std::optional<ProgramFile> running = std::nullopt);
  static constexpr std::chrono::milliseconds kLeastProbation{5000};
  std::chrono::milliseconds probation() const { return probation_; }
  bool on_probation() const { return on_probation_.has_value(); }
  void Prove();
  void GiveUp() { on_probation_.reset(); }

 private:
  const std::string path_;
  const HelperPrograms helpers_;
  const std::string first_;
  std::optional<ProgramFile> file_, on_probation_;
  std::chrono::milliseconds probation_ = kLeastProbation;
};

// Code that a program loads is replaced likewise. `opened`: what OpenHelper() returned for it, or
// its path. Code that is to replace it is looked for in the same place.
ReplaceableProgram ReplaceableCode(const std::string& opened);

// The user that a program runs as. It has no supplementary groups.
struct ProgramUser {
  uid_t uid = 0;
  gid_t gid = 0;
};

// Replaces what is in `file` by the number of this process and a newline. Returns false and leaves
// errno if it cannot. Makes system calls only: a forked child may call it.
bool WriteProcessNumber(int file);

struct SpawnRequest {
  std::string program;                 // path, and its first argument
  std::optional<ProgramFile> file;     // the file to run; none: the one at `program`
  std::vector<std::string> arguments;  // after the first
  std::string input;                   // what it reads from standard input
  InheritedDescriptors descriptors;
  int standard_error = -1;  // -1: the caller's
  // A file, or -1. The process writes its number there (WriteProcessNumber) before it enters the
  // program, so that nobody finds the program running and unnamed, whenever the caller dies. The
  // program runs also if the number cannot be written.
  int pid_file = -1;
  // The program becomes this user for good. It has no capability then, and executing another
  // program gives it none.
  std::optional<ProgramUser> user;
  // The kernel kills the process when the caller dies, in whatever way, unless the process decides
  // otherwise.
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
// Drivers and control outlive batond; the next finds them by their locks (child_lock.h). Control
// is started to die with batond, and takes that back once it is ready (prctl(2), PR_SET_PDEATHSIG).
//
// Returns after the program was entered. An error says why it could not be; Spawn has then killed
// the process, and refuses its program until it has died (open_within.h). Only the main thread may
// call Spawn: for dies_with_us the kernel watches the *thread* that forked.
absl::StatusOr<SpawnedProcess> Spawn(const SpawnRequest& request);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_SPAWN_H_
