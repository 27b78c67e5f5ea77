// FullFence between a store and a load of another word: of two threads that do this with the words
// exchanged, one at least sees the other's store. Sleeping and waking rest on it (layout.md).
#ifndef ATOMIC_ACCESS_HEADER
#define ATOMIC_ACCESS_HEADER "lib/arena/atomic_access.h"
#endif
#include ATOMIC_ACCESS_HEADER

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/harness/processors.h"

namespace baton::arena {
namespace {

constexpr uint64_t kRounds = 300'000;
constexpr int kSpins = 2000;  // before the processor is given to the other thread

struct alignas(64) Side {
  uint64_t word = 0;           // the round in which it was stored last
  uint64_t seen = 0;           // of the other's word
  std::atomic<uint64_t> done;  // rounds
};

class StoreOrderTest : public testing::Test {
 protected:
  // One thread's part; returns when one of the two has seen that both missed a store.
  void Run(int me) {
    Side& mine = sides_[static_cast<size_t>(me)];
    Side& other = sides_[static_cast<size_t>(1 - me)];
    for (uint64_t round = 1; round <= kRounds && !both_missed_.load(); ++round) {
      StoreRelaxed(mine.word, round);
      FullFence();
      mine.seen = LoadRelaxed(other.word);
      mine.done.store(round);
      for (int spins = 1; other.done.load() < round && !both_missed_.load(); ++spins) {
        if (spins % kSpins == 0) sched_yield();
      }
      if (me != 0) {
        // The first looks at the outcome before either goes on.
        for (int spins = 1; looked_.load() < round; ++spins) {
          if (spins % kSpins == 0) sched_yield();
        }
        continue;
      }
      if (mine.seen < round && other.seen < round) both_missed_.store(true);
      looked_.store(round);
    }
  }

  std::array<Side, 2> sides_;
  alignas(64) std::atomic<uint64_t> looked_{0};
  std::atomic<bool> both_missed_{false};
};

TEST_F(StoreOrderTest, shouldNeverLetBothSidesMissTheOthersStore) {
  const std::vector<int> processors = harness::TwoProcessors();
  if (processors.size() < 2) GTEST_SKIP() << "one processor reorders nothing";
  std::array<std::thread, 2> threads;
  for (int side : {0, 1}) {
    threads[static_cast<size_t>(side)] = std::thread([this, side, &processors] {
      // On a machine that is busy, both might take turns on one processor.
      harness::StayOn(processors[static_cast<size_t>(side)]);
      Run(side);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(both_missed_.load()) << "in round " << looked_.load();
}

}  // namespace
}  // namespace baton::arena
