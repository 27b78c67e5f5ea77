// The programs of workers: read from a running one, started anew.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_H_
#define SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::keeper {

// A baton-launch that reads what /proc says of a process. It takes as long as that process's memory
// does: a page of its command line can be of a file that does not come.
struct StartedReading {
  pid_t pid = 0;
  FileDescriptor pidfd;
  FileDescriptor result;
};
// Reads what program `process` runs or, with `file`, whether it maps that file.
absl::StatusOr<StartedReading> StartReading(pid_t process, const std::string& launcher,
                                            int file = -1);
// Returns the program of a process with `uid` and `gid`, after the reading has ended. If /proc
// hides its environment and directory, returns ours and "/". kFailedPrecondition: its command line
// cannot be read.
absl::StatusOr<internal::Program> TakeReading(const StartedReading& reading, uint32_t uid,
                                              uint32_t gid);
// Returns whether the process maps the file. kPermissionDenied: its mappings are hidden from this
// process. kUnavailable: the reading has failed.
absl::StatusOr<bool> TakeMapsFile(const StartedReading& reading);

// kInvalidArgument says what is wrong with `path`, in terms of the field exec: it has to be an
// absolute path, "of an executable". What is there is looked at by who is to run it: a file system
// that does not answer would stop the keeper.
absl::Status CheckProgramPath(const std::string& path, std::string_view what);

struct StartedProgram {
  pid_t pid = 0;
  FileDescriptor pidfd;
  FileDescriptor
      output;  // what it prints (program_output.h); none: its service's workers share one
  // Readable, at its end, when the program was entered; before that, why it cannot be. Does not
  // block. None: it is a fork.
  FileDescriptor entered;
};

// Lets a started process run its program, by StartedProgram::entered or a copy. A process whose
// starter dies before ends without it.
void EnterProgram(int entered);

// Starts a process for `program`, which waits for EnterProgram, in a session of its own, with a
// pipe of its own as its standard output and error, SIGPIPE ignored, and in the network namespace
// of file `batonds_network` unless that is -1 or the program was in ours. Waits for no file system
// and no user database. It is our child, to be reaped by ReapProgram (reap_program.h).
absl::StatusOr<StartedProgram> StartProgram(const internal::Program& program,
                                            const std::string& launcher, int batonds_network = -1);

using ProgramDone = std::function<void(absl::StatusOr<internal::Program>)>;

// How the processes of a service's workers come into being.
class WorkerPrograms {
 public:
  virtual ~WorkerPrograms() = default;
  // kInvalidArgument says what is wrong with `path`, in terms of the field exec.
  virtual absl::Status Check(const std::string& path) const = 0;
  // The program of a worker that lives. `done` is called once, now or from the loop.
  virtual void Read(pid_t pid, uint32_t uid, uint32_t gid, ProgramDone done) = 0;
  // A process with a worker of this program. The caller watches its end, and has it reaped.
  virtual absl::StatusOr<StartedProgram> Start(const internal::Program& program) = 0;
  // The process, which a former keeper may have started. None: it is gone, or unknown.
  virtual FileDescriptor PidfdOf(pid_t pid) const = 0;
  // Returns how it ended, in words; empty while it runs.
  virtual std::string Reap(pid_t pid, int pidfd) = 0;
  // It has taken the place of the one before.
  virtual void OnServing(const internal::Program& program) = 0;
};

// Why a program was not entered, once StartedProgram::entered is readable; OK: it was.
absl::Status ReadEntered(int entered);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_H_
