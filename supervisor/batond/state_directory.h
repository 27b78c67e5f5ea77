// Prepares the state directory of batond, and the directory of control's audit trail.
#ifndef SUPERVISOR_BATOND_STATE_DIRECTORY_H_
#define SUPERVISOR_BATOND_STATE_DIRECTORY_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/batond/child_lock.h"
#include "supervisor/batond/spawn.h"

namespace baton {

// Returns whether users other than batond's may operate, look or attach workers, or native workers
// run as such a user.
bool ServesOthers(const v1::Config& config);

// The state directory, which this batond has to itself while the object lives.
//
// Three things may stand in the way of a start, and each has a lock. If another batond has the
// directory, Open fails at once. Open waits for children of a former batond that are dead or dying.
// Living drivers of the services stay (Child::Start goes on with them), and so does control; Open
// ends drivers of other services, and a control of another user. All locks are flocks: the kernel
// drops them with their last descriptor, however the holder ends.
class StateDirectory {
 public:
  // Makes the directory, with mode 0700, if it is missing. Takes batond's lock, and removes sockets
  // at which nobody listens any more. kAlreadyExists: another batond has it; the message names its
  // pid.
  //
  // `shared`: other users need the sockets, so the directory is made passable (0711). The peer's
  // credentials decide who may speak at a socket. `control`: the user that control is to run as
  // [batond's].
  static absl::StatusOr<StateDirectory> Open(const std::string& path,
                                             const std::vector<std::string>& services, bool shared,
                                             std::optional<uid_t> control = std::nullopt);

  // Does later what `shared` does in Open. A directory that was made passable stays so.
  absl::Status Share(bool shared) const;

  // Removes the sockets of batond, of control if it has ended, and of the keepers of `services`,
  // and nothing else.
  void RemoveSockets(const std::vector<std::string>& services, bool control_has_ended) const;
  // Removes the sockets and the lock file of a driver that has ended, and whose service is no
  // longer configured.
  void RemoveFilesOf(const std::string& service) const;

 private:
  StateDirectory(std::string path, ChildLock lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  ChildLock lock_;
};

// The names of the services.
std::vector<std::string> ServiceNames(const v1::Config& config);

// Returns the directory where control keeps the audit trail. Control runs as `user` [batond's].
// Makes the directory, gives it and the files of the trail to that user, and moves the files there
// if control ran as another user before. Then it makes a link to the file in `state_dir`, which is
// open, for `baton audit --verify`.
//
// If the unit has LogsDirectory=, the trail is in the first of these directories, because the state
// directory may not survive a reboot. Otherwise it is in `state_dir`. With a `user` the trail is in
// a directory of that user's there. The rest stays batond's, which opens services' logs there and
// must not follow a link of a compromised control.
//
// Logs a failure and goes on: the operators' work matters more than its record. REQUIRES: a control
// that runs, runs as `user`. It goes on with the file that it has open.
std::string MakeAuditDirectory(const std::string& state_dir,
                               const std::optional<ProgramUser>& user);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_STATE_DIRECTORY_H_
