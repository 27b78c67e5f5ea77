// The buffer plan says where everything lies in the service's registered buffers. The chunk pool
// says which chunks of them are in use.
#ifndef WORKER_EXAMPLES_NVMED_BUFFER_PLAN_H_
#define WORKER_EXAMPLES_NVMED_BUFFER_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/examples/nvmed/target_config.pb.h"
#include "worker/worker.h"

namespace baton::nvmed {

// Buffers are laid out in pages. Chunks and the memory of namespaces begin on one.
inline constexpr uint64_t kPageBytes = 4096;

// Which chunks of the buffers are in use, and by which connection's commands.
//
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

// The layout of the service's registered buffers:
//   header              one page: what the plan was made of, so that a program with another plan
//                       is refused
//   memory namespaces   in the order of the configuration
//   a slab for each connection:
//     responses         16 bytes each, a ring of twice the send queue, by sequence number
//     capsules          for each slot a command of 64 bytes, and in_capsule_bytes of its data
//   chunks              max_transfer_bytes each, of whichever command needs one, on pages
//
// Immutable, and the same in every worker of a service.
class BufferPlan {
 public:
  static constexpr uint32_t kCommandBytes = 64;
  static constexpr uint32_t kResponseBytes = 16;

  // kInvalidArgument: the service's capacity does not suffice; the message says what would.
  static absl::StatusOr<BufferPlan> Make(const TargetConfig& config, const Capacity& capacity,
                                         uint64_t buffer_bytes);

  // Checks that the buffers are unused or used by this plan. kFailedPrecondition: the message names
  // what differs.
  absl::Status Check(absl::Span<const uint8_t> buffers) const;
  // Marks the buffers as used by this plan. Called by the owner of the shard, after Check.
  void Stamp(absl::Span<uint8_t> buffers) const;

  // Returns where the memory of namespaces[index] of subsystems[subsystem] begins.
  uint64_t Memory(int subsystem, int index) const;

  uint32_t queue_entries() const { return queue_entries_; }  // of each queue, at most
  // `connection`: index.
  uint64_t Response(uint32_t connection, uint64_t sequence) const {
    return Slab(connection) + sequence % response_ring_ * kResponseBytes;
  }
  uint64_t Response(const Connection& connection, uint64_t sequence) const {
    return Response(connection.index(), sequence);
  }
  Buffer Capsule(uint32_t connection, uint32_t slot) const {
    return {Slab(connection) + capsules_ + uint64_t{slot} * capsule_bytes(), capsule_bytes()};
  }
  Buffer Capsule(const Connection& connection, uint32_t slot) const {
    return Capsule(connection.index(), slot);
  }
  uint32_t in_capsule_bytes() const { return in_capsule_bytes_; }
  uint32_t capsule_bytes() const { return kCommandBytes + in_capsule_bytes_; }

  uint32_t chunks() const { return chunks_; }
  uint32_t chunk_bytes() const { return chunk_bytes_; }
  uint64_t Chunk(uint32_t chunk) const { return first_chunk_ + uint64_t{chunk} * chunk_bytes_; }
  // Returns the chunk that contains `offset`; chunks() if none does.
  uint32_t ChunkOf(uint64_t offset) const;

 private:
  struct MemoryRange {
    int subsystem = 0, index = 0;
    uint64_t name = 0;  // of the subsystem and the namespace, hashed
    uint64_t bytes = 0;
    uint64_t offset = 0;
  };

  uint64_t Slab(uint32_t connection) const { return slabs_ + connection * slab_bytes_; }

  std::vector<MemoryRange> memory_;
  uint32_t queue_entries_ = 0, in_capsule_bytes_ = 0;
  uint64_t slabs_ = 0, slab_bytes_ = 0, response_ring_ = 0, capsules_ = 0;
  uint64_t first_chunk_ = 0;
  uint32_t chunks_ = 0, chunk_bytes_ = 0;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_BUFFER_PLAN_H_
