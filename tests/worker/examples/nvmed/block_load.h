// A BlockLoad is a host in a thread of its own that reads and writes at random, and knows what it
// has to read.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_BLOCK_LOAD_H_
#define TESTS_WORKER_EXAMPLES_NVMED_BLOCK_LOAD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tests/worker/examples/nvmed/nvme_host.h"

namespace baton::nvmed {

// A range of blocks of a command, from the beginning of the model's range.
struct BlockRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// What a range of a namespace holds: each block by the number of the write that made it, from which
// its bytes follow.
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

// Its blocks are nobody else's, and hold zeros.
struct BlockLoadOptions {
  NvmeHostOptions host;
  uint32_t nsid = 1;
  uint64_t first_block = 0;
  uint32_t blocks = 1024;
  uint32_t block_bytes = 512;
  uint32_t most_blocks = 32;  // of a command
  uint32_t depth = 4;         // commands outstanding on each queue
  bool invalidate_keys = true;
  bool zeroes = true;  // Write Zeroes, and Deallocate, which has to read as zeros, too
  uint64_t seed = 1;
};

class BlockLoad {
 public:
  explicit BlockLoad(BlockLoadOptions options)
      : options_(std::move(options)),
        model_(options_.first_block, options_.blocks, options_.block_bytes),
        random_(options_.seed),
        thread_([this] { Run(); }) {}
  // A load that nobody has stopped ends without waiting for its answers.
  ~BlockLoad() {
    abandoned_ = true;
    Join();
  }
  BlockLoad(const BlockLoad&) = delete;
  BlockLoad& operator=(const BlockLoad&) = delete;

  // Rests from now on before it takes the next answers, which leaves the processors to workers that
  // start. The commands that follow a rest come together.
  void SlowDown() { rests_ = true; }
  uint64_t answers() const { return answered_; }
  bool failed() const { return ended_ && !stop_; }
  // Ends it. OK: each command was answered once and with success, all blocks hold what was written
  // last, the controller has counted as we have, and nothing came unasked.
  absl::Status Stop() {
    Join();
    return status_;
  }

 private:
  static constexpr std::chrono::milliseconds kRest{5};

  enum class Kind : uint8_t { kRead, kWrite, kZeroes, kDeallocate, kFlush };
  struct Command {
    Kind kind = Kind::kRead;
    BlockRange range;
    uint64_t write = 0;
  };
  using Key = std::pair<uint16_t, uint16_t>;  // queue and command id

  void Join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void Run();
  absl::Status Serve();
  absl::Status Fill(HostQueue& queue);
  absl::Status Submit(HostQueue& queue, const Command& command);
  absl::Status TakeAnswers();
  absl::Status Check(const Command& command, const Response& response);
  absl::Status Verify();
  absl::Status CheckCounters();
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  const BlockLoadOptions options_;
  BlockModel model_;
  std::mt19937_64 random_;
  std::unique_ptr<NvmeHost> host_;
  std::map<Key, Command> outstanding_;
  uint64_t next_write_ = 1;
  uint64_t reads_ = 0, writes_ = 0, bytes_read_ = 0, bytes_written_ = 0;
  absl::Status status_;  // of the thread, until it was joined
  std::atomic<uint64_t> answered_{0};
  std::atomic<bool> stop_{false}, abandoned_{false}, ended_{false}, rests_{false};
  std::thread thread_;
};

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_BLOCK_LOAD_H_
