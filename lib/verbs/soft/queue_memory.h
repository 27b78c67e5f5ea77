#ifndef LIB_VERBS_SOFT_QUEUE_MEMORY_H_
#define LIB_VERBS_SOFT_QUEUE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/nic/client.h"

namespace baton::verbs::soft {

// Memory for queues that a NIC executes: parts of memfds. It does not move, and no core dump has
// it. Thread-compatible.
class QueueMemory {
 public:
  struct Block {
    uint8_t* begin = nullptr;
    uint64_t bytes = 0;
    nic::control::Place place;  // what the NIC calls it
  };

  // `client` outlives it. `inherited`: processes forked from this one have the memory, too.
  QueueMemory(nic::Client* client, bool inherited);
  ~QueueMemory();
  QueueMemory(const QueueMemory&) = delete;
  QueueMemory& operator=(const QueueMemory&) = delete;

  // Returns zeros, at a multiple of `alignment` (a power of two, at most a page).
  absl::StatusOr<Block> Allocate(uint64_t bytes, uint64_t alignment);
  // The first call of a forked process: processes forked from it do not have the memory.
  void KeepFromChildren() const;
  // The NIC uses it no more, unless it is lost: then nobody knows, and the memory is not used
  // again.
  void Free(const Block& block) {
    if (!client_->calls().lost()) free_[block.bytes].push_back(block);
  }

 private:
  class File;

  absl::Status AddFile(uint64_t bytes);

  nic::Client* const client_;
  const bool inherited_;
  std::vector<std::unique_ptr<File>> files_;
  uint64_t used_ = 0;                                       // of the last file
  absl::flat_hash_map<uint64_t, std::vector<Block>> free_;  // by size
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_QUEUE_MEMORY_H_
