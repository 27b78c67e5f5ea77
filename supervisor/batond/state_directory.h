#ifndef SUPERVISOR_BATOND_STATE_DIRECTORY_H_
#define SUPERVISOR_BATOND_STATE_DIRECTORY_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/batond/child_lock.h"

namespace baton {

// Users besides our own may operate, look, attach workers, or be those that native workers run as.
bool ServesOthers(const v1::Config& config);

// The state directory, for as long as this batond has it to itself.
//
// Three things may stand in the way of a start, and each has a lock: another batond is refused at
// once. Children of a former batond that are dead or dying are waited for. Living drivers of the
// services stay (Child::Start goes on with them), those of other services are ended. All locks are
// flocks: the kernel drops them with their last descriptor, whatever the holder died of.
class StateDirectory {
 public:
  // Makes the directory, with mode 0700, when it is missing; takes batond's lock; removes sockets
  // that nobody listens at any more. kAlreadyExists names the pid of the batond that has it.
  //
  // `shared`: other users reach the sockets, so the directory is made passable (0711); who may
  // speak at a socket is decided by the peer's credentials.
  static absl::StatusOr<StateDirectory> Open(const std::string& path,
                                             const std::vector<std::string>& services, bool shared);

  // The same as `shared` of Open, later on; what was made passable stays so.
  absl::Status Share(bool shared) const;

  // Removes the sockets of batond, control and the keepers of `services`, and nothing else.
  void RemoveSockets(const std::vector<std::string>& services) const;
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

}  // namespace baton

#endif  // SUPERVISOR_BATOND_STATE_DIRECTORY_H_
