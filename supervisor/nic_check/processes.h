// Forked drivers of a check, and their ends.
#ifndef SUPERVISOR_NIC_CHECK_PROCESSES_H_
#define SUPERVISOR_NIC_CHECK_PROCESSES_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::nic_check {

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

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_PROCESSES_H_
