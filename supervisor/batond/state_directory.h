#ifndef SUPERVISOR_BATOND_STATE_DIRECTORY_H_
#define SUPERVISOR_BATOND_STATE_DIRECTORY_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// Users besides our own may operate, look, attach workers, or be those that native workers run as.
bool ServesOthers(const v1::Config& config);

// The state directory, for as long as this batond has it to itself.
//
// Two locks, because two things may stand in the way of a start: another batond (at once refused),
// and children of one that was killed, which the kernel is still taking apart (waited for). Both
// are flocks: the kernel drops them with their last descriptor, whatever the holder died of.
class StateDirectory {
 public:
  // Makes the directory, with mode 0700, when it is missing; takes both locks; removes sockets that
  // a killed batond left behind. kAlreadyExists names the pid of the batond that has it.
  //
  // `sockets` are the paths of the sockets that keepers and control will make there. `shared`:
  // other users reach the sockets, so the directory is made passable (0711); who may speak at a
  // socket is decided by the peer's credentials.
  static absl::StatusOr<StateDirectory> Open(const std::string& path,
                                             std::vector<std::string> sockets, bool shared);

  // The same as `shared` of Open, later on; what was made passable stays so.
  absl::Status Share(bool shared) const;

  // Every child inherits it, and so holds the second lock until it is gone.
  int children_lock() const { return children_lock_.get(); }

  // Removes the sockets, and nothing else.
  void RemoveSockets() const;

 private:
  StateDirectory(std::string path, FileDescriptor lock, FileDescriptor children_lock,
                 std::vector<std::string> sockets)
      : path_(std::move(path)),
        lock_(std::move(lock)),
        children_lock_(std::move(children_lock)),
        sockets_(std::move(sockets)) {}

  std::string path_;
  FileDescriptor lock_;
  FileDescriptor children_lock_;
  std::vector<std::string> sockets_;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_STATE_DIRECTORY_H_
