#ifndef LIB_VERBS_SOFT_QUEUE_MEMORY_H_
#define LIB_VERBS_SOFT_QUEUE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/nic/client.h"

namespace baton::verbs::soft {

// Allocates memory for queues that a NIC executes, as parts of memfds. The memory never moves, and
// core dumps leave it out. Thread-compatible.
class QueueMemory {
 public:
  struct Place {
    uint8_t* begin = nullptr;
    uint64_t bytes = 0;
    nic::control::Place place;  // what the NIC calls it
  };
  // Owns a part of the memory. The memory outlives the block. REQUIRES: the NIC no longer uses the
  // part when the block is destroyed. A lost NIC may still use it, so the part is then never
  // allocated again.
  class Block : public Place {
   public:
    Block(QueueMemory* memory, const Place& place) : Place(place), memory_(memory) {}
    Block(Block&& other) noexcept : Place(other), memory_(std::exchange(other.memory_, nullptr)) {}
    Block& operator=(Block&&) = delete;
    ~Block() {
      if (memory_ != nullptr && !memory_->client_->calls().lost()) {
        memory_->free_[bytes].push_back(*this);
      }
    }

   private:
    QueueMemory* memory_;
  };

  // `client` outlives this object. `inherited`: processes forked from this one inherit the memory.
  QueueMemory(nic::Client* client, bool inherited);
  ~QueueMemory();
  QueueMemory(const QueueMemory&) = delete;
  QueueMemory& operator=(const QueueMemory&) = delete;

  // Returns zeroed memory at a multiple of `alignment` (a power of two, at most a page).
  absl::StatusOr<Block> Allocate(uint64_t bytes, uint64_t alignment);
  // A forked process calls this first, so that processes forked from it do not inherit the memory.
  void KeepFromChildren() const;

 private:
  class File;

  absl::Status AddFile(uint64_t bytes);

  nic::Client* const client_;
  const bool inherited_;
  std::vector<std::unique_ptr<File>> files_;
  uint64_t used_ = 0;                                       // of the last file
  absl::flat_hash_map<uint64_t, std::vector<Place>> free_;  // by size
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_QUEUE_MEMORY_H_
