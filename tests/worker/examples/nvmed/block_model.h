// What a range of a namespace holds: each block by the number of the write that made it, from which
// its bytes follow.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_BLOCK_MODEL_H_
#define TESTS_WORKER_EXAMPLES_NVMED_BLOCK_MODEL_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace baton::nvmed {

// A range of blocks of a command, from the beginning of the model's range.
struct BlockRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

class BlockModel {
 public:
  // All blocks are zeros.
  BlockModel(uint64_t first_block, uint32_t blocks, uint32_t block_bytes)
      : first_block_(first_block), block_bytes_(block_bytes), writes_(blocks), busy_(blocks) {}

  uint64_t BlockOf(const BlockRange& range) const { return first_block_ + range.first; }
  uint32_t blocks() const { return static_cast<uint32_t>(writes_.size()); }
  uint32_t BytesOf(const BlockRange& range) const { return range.count * block_bytes_; }

  // Commands that are outstanding have no blocks in common: what they leave is defined.
  bool IsFree(const BlockRange& range) const {
    for (uint32_t i = 0; i < range.count; ++i) {
      if (busy_[range.first + i]) return false;
    }
    return true;
  }
  void SetBusy(const BlockRange& range, bool busy) {
    for (uint32_t i = 0; i < range.count; ++i) busy_[range.first + i] = busy;
  }

  // The bytes of write number `write`; 0: zeros.
  std::vector<uint8_t> Data(const BlockRange& range, uint64_t write) const {
    std::vector<uint8_t> data(BytesOf(range));
    for (uint32_t i = 0; write != 0 && i < range.count; ++i) {
      const uint64_t seed = write << 32 ^ (BlockOf(range) + i);
      for (uint32_t at = 0; at < block_bytes_; at += sizeof(seed)) {
        const uint64_t word = (seed ^ at) * 0x9e3779b97f4a7c15;
        std::memcpy(&data[i * block_bytes_ + at], &word, sizeof(word));
      }
    }
    return data;
  }
  void Write(const BlockRange& range, uint64_t write) {
    for (uint32_t i = 0; i < range.count; ++i) writes_[range.first + i] = write;
  }

  // Empty: they are what they have to be. Otherwise which block is not, and what it should be.
  std::string Compare(const BlockRange& range, absl::Span<const uint8_t> data) const {
    if (data.size() != BytesOf(range)) return absl::StrCat(data.size(), " bytes were read");
    for (uint32_t i = 0; i < range.count; ++i) {
      const BlockRange one{range.first + i, 1};
      const std::vector<uint8_t> expected = Data(one, writes_[one.first]);
      if (std::memcmp(expected.data(), &data[i * block_bytes_], block_bytes_) != 0) {
        return absl::StrCat("block ", BlockOf(one), " does not hold what write ",
                            writes_[one.first], " has left there");
      }
    }
    return {};
  }

 private:
  const uint64_t first_block_;
  const uint32_t block_bytes_;
  std::vector<uint64_t> writes_;
  std::vector<bool> busy_;
};

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_BLOCK_MODEL_H_
