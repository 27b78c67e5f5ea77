// Which chunks of the buffers are in use, and by which connection's commands.
#ifndef WORKER_EXAMPLES_NVMED_CHUNK_POOL_H_
#define WORKER_EXAMPLES_NVMED_CHUNK_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace baton::nvmed {

// Thread-compatible. Not in shared memory: what is in use is told by the work requests and the
// state that outlive a worker, so a successor finds it out anew.
class ChunkPool {
 public:
  void Reset(uint32_t chunks) {
    owners_.assign(chunks, 0);
    given_back_.clear();
    free_.clear();
    free_.reserve(chunks);
    given_back_.reserve(chunks);
  }

  // For the time between Reset and Fill: `chunk` is in use, by one command of the connection.
  // false: by another one, or there is none such.
  bool Claim(uint32_t chunk, uint32_t connection) {
    if (chunk >= owners_.size() || owners_[chunk] != 0) return false;
    owners_[chunk] = connection + 1;
    return true;
  }
  // All that nobody claimed is free.
  void Fill() {
    for (uint32_t chunk = static_cast<uint32_t>(owners_.size()); chunk-- > 0;) {
      if (owners_[chunk] == 0) free_.push_back(chunk);
    }
  }

  bool Has(uint32_t chunk, uint32_t connection) const {
    return chunk < owners_.size() && owners_[chunk] == connection + 1;
  }
  std::optional<uint32_t> Take(uint32_t connection) {
    if (free_.empty()) return std::nullopt;
    const uint32_t chunk = free_.back();
    free_.pop_back();
    owners_[chunk] = connection + 1;
    return chunk;
  }
  // It is free once the open transaction is committed: until then a successor would find it in use.
  void GiveBack(uint32_t chunk) {
    if (chunk >= owners_.size() || owners_[chunk] == 0) return;
    owners_[chunk] = 0;
    given_back_.push_back(chunk);
  }
  // Somebody goes on using it when its connection ends: GiveBackAll leaves it.
  void Keep(uint32_t chunk) { owners_[chunk] = UINT32_MAX; }
  // Gives back all chunks of a connection that has ended.
  void GiveBackAll(uint32_t connection) {
    for (uint32_t chunk = 0; chunk < owners_.size(); ++chunk) {
      if (owners_[chunk] == connection + 1) GiveBack(chunk);
    }
  }
  // Whether there are more now.
  bool Committed() {
    const bool more = !given_back_.empty();
    free_.insert(free_.end(), given_back_.begin(), given_back_.end());
    given_back_.clear();
    return more;
  }

 private:
  std::vector<uint32_t> owners_;  // by chunk: 1 + index of the connection
  std::vector<uint32_t> free_, given_back_;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_CHUNK_POOL_H_
