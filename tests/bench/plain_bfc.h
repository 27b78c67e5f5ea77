// The allocator that a shard's heap is compared with: best fit with coalescing, as TensorFlow's
// BFCAllocator does it, over a range of offsets. Bins of powers of two hold the free chunks, the
// smallest that fits is searched for, and split, and a chunk that becomes free is joined with its
// neighbours. Nothing of it survives its process, and it knows no work requests.
#ifndef TESTS_BENCH_PLAIN_BFC_H_
#define TESTS_BENCH_PLAIN_BFC_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace baton::bench {

// Thread-compatible.
class PlainBfc {
 public:
  static constexpr uint64_t kUnitBytes = 64;

  // `bytes`: a multiple of kUnitBytes.
  explicit PlainBfc(uint64_t bytes);
  // The sets of free chunks refer to this object.
  PlainBfc(const PlainBfc&) = delete;
  PlainBfc& operator=(const PlainBfc&) = delete;

  // Returns the offset of at least `bytes`, or nothing if there is no room. REQUIRES: bytes > 0.
  std::optional<uint64_t> Allocate(uint64_t bytes);
  // REQUIRES: Allocate() returned `offset`, and it was not freed since.
  void Free(uint64_t offset);
  uint64_t free_bytes() const { return free_units_ * kUnitBytes; }

 private:
  struct Chunk {
    uint64_t offset = 0, units = 0;  // in units
    uint32_t before = kNone, behind = kNone;
    bool is_free = false;
  };
  struct Wanted {
    uint64_t units;
  };
  struct SmallestFirst {
    using is_transparent = void;
    const std::vector<Chunk>* chunks;
    bool operator()(uint32_t chunk, const Wanted& wanted) const {
      return (*chunks)[chunk].units < wanted.units;
    }
    bool operator()(const Wanted& wanted, uint32_t chunk) const {
      return wanted.units < (*chunks)[chunk].units;
    }
    bool operator()(uint32_t a, uint32_t b) const {
      const Chunk &one = (*chunks)[a], &other = (*chunks)[b];
      return one.units != other.units ? one.units < other.units : one.offset < other.offset;
    }
  };
  using Bin = std::set<uint32_t, SmallestFirst>;

  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kBins = 32;

  static uint32_t BinOf(uint64_t units);
  uint32_t NewChunk(const Chunk& chunk);
  void Insert(uint32_t index);
  void Remove(uint32_t index);
  void Split(uint32_t index, uint64_t units);
  void Join(uint32_t index, uint32_t behind);

  std::vector<Chunk> chunks_;
  std::vector<uint32_t> unused_;    // chunks that are none
  std::vector<uint32_t> chunk_at_;  // by unit at which it begins
  std::vector<Bin> bins_;
  uint64_t free_units_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_PLAIN_BFC_H_
