// A host in a thread of its own that reads and writes at random, and knows what it has to read.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_BLOCK_LOAD_H_
#define TESTS_WORKER_EXAMPLES_NVMED_BLOCK_LOAD_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "tests/worker/examples/nvmed/block_model.h"
#include "tests/worker/examples/nvmed/nvme_host.h"

namespace baton::nvmed {

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
  // Who does not Stop it does not care: it waits for nothing any more.
  ~BlockLoad() {
    abandoned_ = true;
    Join();
  }
  BlockLoad(const BlockLoad&) = delete;
  BlockLoad& operator=(const BlockLoad&) = delete;

  uint64_t commands() const { return answered_; }
  bool failed() const { return ended_ && !stop_; }
  // Ends it. OK: each command was answered once and with success, all blocks hold what was written
  // last, the controller has counted as we have, and nothing came unasked.
  absl::Status Stop() {
    Join();
    return status_;
  }

 private:
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
  std::atomic<bool> stop_{false}, abandoned_{false}, ended_{false};
  std::thread thread_;
};

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_BLOCK_LOAD_H_
