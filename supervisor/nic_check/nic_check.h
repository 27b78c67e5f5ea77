// Checks on a device what native ownership of its queues needs (lib/verbs/mlx5/checklist.md).
#ifndef SUPERVISOR_NIC_CHECK_NIC_CHECK_H_
#define SUPERVISOR_NIC_CHECK_NIC_CHECK_H_

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::nic_check {

// Forked drivers of a check, and their ends.

// Drivers are killed at a random instant within this time.
inline constexpr uint64_t kLatestKillNs = 400'000;

// Runs `run` in a forked process, which exits with 0 if it returns OK. The process ends with this
// one, because nobody else would stop a driver that works.
absl::StatusOr<pid_t> Fork(const std::function<absl::Status()>& run);
absl::Status AwaitSuccess(pid_t child);
absl::Status Kill(pid_t child);

// Waits without a system call, which would return later.
void PassTime(uint64_t nanoseconds);

// Zeroed memory that forked processes share. It is allocated piece by piece and freed as a whole.
// Thread-compatible.
class SharedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Make(size_t bytes);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  // Returns nullptr if too little is left. `alignment`: a power of two, at most a page.
  void* Allocate(size_t bytes, size_t alignment);

  int fd() const { return fd_.get(); }
  uint8_t* begin() const { return begin_; }
  size_t bytes() const { return bytes_; }

 private:
  SharedMemory(FileDescriptor fd, uint8_t* begin, size_t bytes)
      : fd_(std::move(fd)), begin_(begin), bytes_(bytes) {}

  const FileDescriptor fd_;
  uint8_t* const begin_;
  const size_t bytes_;
  size_t used_ = 0;
};

struct Options {
  uint8_t port = 1;
  int gid_index = -1;                        // see FindLoopbackAddress
  uint32_t kills = 200;                      // drivers killed in each check that kills some
  uint64_t seed = 1;                         // of the instants of the kills
  std::chrono::milliseconds patience{1000};  // for anything that the device has to do

  uint64_t patience_ns() const {
    return static_cast<uint64_t>(std::chrono::nanoseconds(patience).count());
  }
};

struct Finding {
  std::string name;
  bool holds = false;
  std::string text;  // what was seen
};

inline constexpr size_t kSharedBytes = 8 << 20;

// Makes some queue pairs on the device, connected to each other through its port, and forks drivers
// of them, some of which it kills. Other users of the device only notice a little load. The process
// must have no other threads. `shared` must have kSharedBytes and outlive the context's objects.
//
// An error: nothing could be checked. No queue pair could be connected, or the environment asks
// libibverbs for behaviour that Baton's driver cannot work with.
absl::StatusOr<std::vector<Finding>> CheckNic(ibv_context* context, const Options& options,
                                              SharedMemory* shared);

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_NIC_CHECK_H_
