// Reads the program of a running worker, and starts programs.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_H_
#define SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::keeper {

// A baton-launch that reads what /proc says of a process. It may have to wait for that process's
// memory: its command line can be in a file whose file system does not answer.
struct StartedReading {
  pid_t pid = 0;
  FileDescriptor pidfd;
  FileDescriptor result;
};
// Reads what program `process` runs or, with `file`, whether it maps that file.
absl::StatusOr<StartedReading> StartReading(pid_t process, const std::string& launcher,
                                            int file = -1);
// Returns the program of a process with `uid` and `gid`, after the reading has ended. If /proc
// hides its environment and directory, returns the keeper's environment and "/".
// kFailedPrecondition: its command line cannot be read.
absl::StatusOr<internal::Program> TakeReading(const StartedReading& reading, uint32_t uid,
                                              uint32_t gid);
// Returns whether the process maps the file. kPermissionDenied: its mappings are hidden from this
// process. kUnavailable: the reading has failed.
absl::StatusOr<bool> TakeMapsFile(const StartedReading& reading);

// Checks that `path` is absolute. kInvalidArgument names the field exec, and `what` has to be at
// the path ("an executable"). Does not look at the file, because a file system that does not answer
// would stop the keeper: the process that is to run the file looks at it.
absl::Status CheckProgramPath(const std::string& path, std::string_view what);

struct StartedProgram {
  pid_t pid = 0;
  FileDescriptor pidfd;
  FileDescriptor
      output;  // what it prints (program_output.h); none: its service's workers share one
  // Has the reason if the program cannot be entered, and then ends (ReadEntered). Ends without a
  // reason when the program was entered. Reading does not block. None: the process is a fork.
  FileDescriptor entered;
};

// Lets a started process run its program. `entered`: StartedProgram::entered, or a copy. If the
// keeper dies before, the process ends without running it.
void EnterProgram(int entered);

// Starts a process for `program`, which waits for EnterProgram(). It has a session of its own, a
// pipe of its own as standard output and error, and ignores SIGPIPE. It runs in the network
// namespace of file `batonds_network`, unless that is -1 or the program was in the keeper's. This
// call waits for no file system and no user database. The caller reaps the child with ReapProgram
// (spawn_plan.h).
absl::StatusOr<StartedProgram> StartProgram(const internal::Program& program,
                                            const std::string& launcher, int batonds_network = -1);

using ProgramDone = std::function<void(absl::StatusOr<internal::Program>)>;

// Starts the processes of a service's workers, and reaps them.
class WorkerPrograms {
 public:
  virtual ~WorkerPrograms() = default;
  // kInvalidArgument says what is wrong with `path`, in terms of the field exec.
  virtual absl::Status Check(const std::string& path) const = 0;
  // Reads the program of a worker that lives. Calls `done` once, now or from the loop.
  virtual void Read(pid_t pid, uint32_t uid, uint32_t gid, ProgramDone done) = 0;
  // Starts a process with a worker of this program. The caller watches for its end, and calls
  // Reap().
  virtual absl::StatusOr<StartedProgram> Start(const internal::Program& program) = 0;
  // Returns the pidfd of a process, which a former keeper may have started. None: it is gone, or
  // unknown.
  virtual FileDescriptor PidfdOf(pid_t pid) const = 0;
  // Returns how it ended, in words; empty while it runs.
  virtual std::string Reap(pid_t pid, int pidfd) = 0;
  // Called when `program` has taken the place of the one before.
  virtual void OnServing(const internal::Program& program) = 0;
};

// Returns why a program was not entered; OK: it was. Call it once StartedProgram::entered is
// readable.
absl::Status ReadEntered(int entered);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_H_
