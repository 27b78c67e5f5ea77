// The locks of batond and of its children. By a child's lock the next batond finds a child that
// outlived this one.
#ifndef SUPERVISOR_BATOND_CHILD_LOCK_H_
#define SUPERVISOR_BATOND_CHILD_LOCK_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/batond/spawn.h"

namespace baton {

// A file that is locked with flock(2). The child inherits the descriptor, so the kernel drops the
// lock when the last process that has it ends, however it ends. The file contains the child's pid.
// The inherited descriptor is for reading, so that control, which has a user of its own, cannot
// replace the pid. Thread-compatible.
class ChildLock {
 public:
  explicit ChildLock(std::string path) : path_(std::move(path)) {}

  // Takes the lock, if this process does not have it yet. kUnavailable: a process of a former
  // batond has it.
  absl::Status Take();
  // Takes back the lock that a child has, through the child's descriptor. kPermissionDenied: it is
  // no descriptor of this file, or does not have its lock.
  absl::Status Receive(FileDescriptor descriptor);
  void Drop() { file_.Reset(); }

  // Writes down that this process has the lock, padded with newlines to `bytes`. The file never
  // becomes shorter than that meanwhile, unless it was. REQUIRES: the lock was taken. A child that
  // is started with the lock writes its pid itself (SpawnRequest::pid_file).
  absl::Status NameHolder(size_t bytes = 0);
  // Opens the file for writing.
  absl::StatusOr<FileDescriptor> OpenForNaming() const;
  // Returns the living child that has the lock, after Take has returned kUnavailable. Returns none
  // if the child is dead, or does not run one of `programs`, perhaps because it has not entered it
  // yet.
  std::optional<SpawnedProcess> Holder(const std::vector<std::string>& programs) const;

  int descriptor() const { return file_.get(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileDescriptor file_;  // none: this process does not have the lock
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_CHILD_LOCK_H_
