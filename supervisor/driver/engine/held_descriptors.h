// Holds descriptors that workers of a service hand over, so that a successor of theirs can have a
// duplicate: it can read a file that was renamed or deleted meanwhile.
#ifndef SUPERVISOR_DRIVER_ENGINE_HELD_DESCRIPTORS_H_
#define SUPERVISOR_DRIVER_ENGINE_HELD_DESCRIPTORS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

// A held descriptor is the service's, whatever becomes of the worker that handed it over. The
// keeper passes regular files and memfds only, of file systems that no other process serves. So no
// close waits for one. But the last close of a large deleted file takes long: Take() leaves it to
// the caller.
//
// Thread-compatible: the engine's thread.
class HeldDescriptors {
 public:
  static constexpr uint32_t kMost = 256;  // of a service

  // Returns the number, which is not 0 and is no other descriptor's as long as this object lives.
  // `tag`: the worker's, for Numbers(). kResourceExhausted: kMost are held.
  absl::StatusOr<uint64_t> Hold(uint64_t worker_id, uint64_t tag, FileDescriptor descriptor);

  // Returns the descriptor, which stays this object's and is open until Take(); -1: it is not held.
  int Find(uint64_t number) const;

  // Holds it no longer. Returns an empty one if it was not held.
  FileDescriptor Take(uint64_t number);

  // Called when the worker is gone. Its descriptors stay, and count for the service alone.
  void Forget(uint64_t worker_id);

  uint32_t count() const { return static_cast<uint32_t>(held_.size()); }
  uint32_t CountOf(uint64_t worker_id) const;
  std::vector<uint64_t> Numbers(uint64_t tag) const;  // ascending

 private:
  struct Held {
    uint64_t worker_id = 0;  // 0: it is gone
    uint64_t tag = 0;
    FileDescriptor descriptor;
  };

  uint64_t last_ = 0;
  std::map<uint64_t, Held> held_;  // by number
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_HELD_DESCRIPTORS_H_
