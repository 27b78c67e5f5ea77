#ifndef LIB_VERBS_SOFT_QUEUE_MEMORY_H_
#define LIB_VERBS_SOFT_QUEUE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/nic/client.h"

namespace baton::verbs::soft {

// Memory for queues that a NIC executes: parts of memfds. It does not move. Forked processes do not
// have it, and core dumps neither. Thread-compatible.
class QueueMemory {
 public:
  struct Block {
    uint8_t* begin = nullptr;
    uint64_t bytes = 0;
    nic::control::Place place;  // what the NIC calls it
  };

  // `client` outlives it.
  explicit QueueMemory(nic::Client* client);
  ~QueueMemory();
  QueueMemory(const QueueMemory&) = delete;
  QueueMemory& operator=(const QueueMemory&) = delete;

  // Returns zeros, at a multiple of `alignment` (a power of two, at most a page).
  absl::StatusOr<Block> Allocate(uint64_t bytes, uint64_t alignment);
  // The NIC uses it no more, unless it is lost: then nobody knows, and the memory is not used
  // again.
  void Free(const Block& block) {
    if (!client_->calls().lost()) free_[block.bytes].push_back(block);
  }

 private:
  class File;

  absl::Status AddFile(uint64_t bytes);

  nic::Client* const client_;
  std::vector<std::unique_ptr<File>> files_;
  uint64_t used_ = 0;                                       // of the last file
  absl::flat_hash_map<uint64_t, std::vector<Block>> free_;  // by size
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_QUEUE_MEMORY_H_
