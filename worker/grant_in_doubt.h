// Inside the worker library: memory that a worker asked to grant, and about which its keeper has
// not answered in time. The grant may still be made, so no heap gives the memory to anybody.
#ifndef WORKER_GRANT_IN_DOUBT_H_
#define WORKER_GRANT_IN_DOUBT_H_

#include <atomic>
#include <cstdint>

namespace baton {

// Set() and ranges are for the worker's thread. Any thread may call Clear().
class GrantInDoubt {
 public:
  // Both in bytes, from the beginning of the buffers.
  void Set(uint64_t offset, uint64_t length) {
    offset_ = offset;
    length_.store(length, std::memory_order_release);
  }
  // Called when a reply says what has become of the grant. If it is there, so is its record.
  void Clear() { length_.store(0, std::memory_order_release); }

  uint64_t offset() const { return offset_; }
  // Returns 0 if no grant is in doubt. Then all records of the worker's grants are there.
  uint64_t length() const { return length_.load(std::memory_order_acquire); }

 private:
  uint64_t offset_ = 0;
  std::atomic<uint64_t> length_{0};
};

}  // namespace baton

#endif  // WORKER_GRANT_IN_DOUBT_H_
