// The pipe by which drivers and control learn that batond was stopped for good (kStayVariable).
// Nobody writes to it: its last writing end is closed then. The service manager keeps both ends for
// the next batond (systemd's file descriptor store: "FDSTORE=1" of sd_notify(3),
// FileDescriptorStoreMax= of the unit). The next batond gives the reading end to those that it
// starts.
#ifndef SUPERVISOR_BATOND_STAY_PIPE_H_
#define SUPERVISOR_BATOND_STAY_PIPE_H_

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/batond/own_program.h"

namespace baton {

struct StayPipe {
  FileDescriptor reading, writing;

  // Takes the ends that the manager has given back to this process, if any, and removes LISTEN_FDS
  // from the environment. Closes other descriptors that were given back, and has the manager let go
  // of them.
  static StayPipe GivenBack();

  // Returns `given_back` if it is complete. Otherwise makes another pipe and has the manager keep
  // it. kFailedPrecondition: no service manager runs this process.
  static absl::StatusOr<StayPipe> Keep(StayPipe given_back);

  // Has the manager let go of both ends.
  static void GiveUp();

  // Passes both ends of `pipe`, or nothing if it is null, to the program that this process executes
  // next, as the manager would have given them back. It overwrites open descriptors to do so.
  static void Leave(const StayPipe* pipe, OwnProgram* program);
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_STAY_PIPE_H_
