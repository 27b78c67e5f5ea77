// Which chunks of the buffers are in use, and by which connection's commands.
#ifndef WORKER_EXAMPLES_NVMED_CHUNK_POOL_H_
#define WORKER_EXAMPLES_NVMED_CHUNK_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace baton::nvmed {

// Thread-compatible. Not in shared memory: a successor learns which chunks are in use from the work
// requests and the state, which outlive a worker.
class ChunkPool {
 public:
  void Reset(uint32_t chunks) {
    owners_.assign(chunks, 0);
    given_back_.clear();
    free_.clear();
    free_.reserve(chunks);
    given_back_.reserve(chunks);
  }

  // Marks `chunk` as in use by a command of the connection. For the time between Reset and Fill.
  // Returns false if another command has it, or there is no such chunk.
  bool Claim(uint32_t chunk, uint32_t connection) {
    if (chunk >= owners_.size() || owners_[chunk] != 0) return false;
    owners_[chunk] = connection + 1;
    return true;
  }
  // Makes all chunks free that were not claimed.
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
  // The chunk is free once the open transaction is committed: until then a successor would find it
  // in use.
  void GiveBack(uint32_t chunk) {
    if (chunk >= owners_.size() || owners_[chunk] == 0) return;
    owners_[chunk] = 0;
    given_back_.push_back(chunk);
  }
  // Keeps the chunk in use beyond the end of its connection: GiveBackAll leaves it.
  void Keep(uint32_t chunk) { owners_[chunk] = UINT32_MAX; }
  // Gives back all chunks of a connection that has ended.
  void GiveBackAll(uint32_t connection) {
    for (uint32_t chunk = 0; chunk < owners_.size(); ++chunk) {
      if (owners_[chunk] == connection + 1) GiveBack(chunk);
    }
  }
  // Called after each commit. Returns whether more chunks are free now.
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
