// Anonymous memory to register with a device: MAP_SHARED, touched, page-aligned.
#ifndef WORKER_EXAMPLES_COMMON_SHARED_MEMORY_H_
#define WORKER_EXAMPLES_COMMON_SHARED_MEMORY_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/status.h"

namespace baton::examples {

class SharedMemory {
 public:
  static absl::StatusOr<SharedMemory> Allocate(size_t bytes) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) return ErrnoStatus(errno, "cannot map the message buffers");
    return SharedMemory(static_cast<uint8_t*>(base), bytes);
  }
  SharedMemory(SharedMemory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }

  uint8_t* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  SharedMemory(uint8_t* base, size_t bytes) : base_(base), bytes_(bytes) {}

  uint8_t* base_;
  size_t bytes_;
};

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_SHARED_MEMORY_H_
