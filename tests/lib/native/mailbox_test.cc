// `baton-driver` puts a notice for the driver of a shard while a worker claims the shard:
// `baton-driver` sees whom it has to wake, or the claimant sees the notice.
#ifndef MAILBOX_HEADER
#define MAILBOX_HEADER "lib/native/mailbox.h"
#endif
#include MAILBOX_HEADER

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "tests/harness/processors.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::native {
namespace {

constexpr uint64_t kRounds = 200'000;
constexpr int kSpins = 2000;  // before the processor is given to the other thread
constexpr uint32_t kClaimant = 1;

void Await(const std::atomic<uint64_t>& word, uint64_t round) {
  for (int spins = 1; word.load() < round; ++spins) {
    if (spins % kSpins == 0) sched_yield();
  }
}

class NoticeTest : public ::testing::Test {
 protected:
  NoticeTest() {
    arena::Shape shape = driver::testing::TestShape(1);
    shape.pooled_queue_pairs = 1;
    arena_.emplace(arena::Arena::Create(shape, "kv").value());
    arena_->shard(0).owner.ownership = arena::PackOwnership(0, arena::kNobody);
  }

  // `baton-driver`: ConnectionManager puts a notice, and NativeEngine finds whom to wake.
  void Tell(uint64_t round) {
    Mailbox notices = Mailbox::Notices(*arena_, 0);
    std::deque<arena::MailEntry> waiting(1);
    begun_[0].store(round);
    Await(begun_[1], round);
    notices.PutWaiting(&waiting, [](const arena::MailEntry&) {});
    woken_ = driver::Ownership(&*arena_, 0).owner_slot() != arena::kNobody;
    done_[0].store(round);
  }
  // The worker, as NativeDriver claims and attends.
  void Claim(uint64_t round) {
    driver::Ownership ownership(&*arena_, 0);
    Mailbox notices = Mailbox::Notices(*arena_, 0);
    const uint64_t word = ownership.word();
    begun_[1].store(round);
    Await(begun_[0], round);
    ownership.Claim(word, kClaimant);
    told_ = !notices.empty();
    done_[1].store(round);
    Await(done_[0], round);
    if (!told_ && !woken_) lost_in_ = round;
    notices.Pass();
    ownership.Vacate(ownership.word());
  }

  std::optional<arena::Arena> arena_;
  alignas(64) std::atomic<uint64_t> begun_[2] = {};
  alignas(64) std::atomic<uint64_t> done_[2] = {};
  alignas(64) std::atomic<uint64_t> over_{0};
  alignas(64) bool woken_ = false;
  alignas(64) bool told_ = false;
  uint64_t lost_in_ = 0;
};

TEST_F(NoticeTest, shouldBeSeenByTheClaimantOrTheClaimByBatonDriver) {
  const std::vector<int> processors = harness::TwoProcessors();
  if (processors.size() < 2) GTEST_SKIP() << "one processor reorders nothing";
  std::thread keeper([&] {
    harness::StayOn(processors[0]);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      Tell(round);
      Await(over_, round);
    }
  });
  harness::StayOn(processors[1]);
  for (uint64_t round = 1; round <= kRounds; ++round) {
    Claim(round);
    over_.store(round);
  }
  keeper.join();
  EXPECT_EQ(lost_in_, 0u) << "the notice of that round was left to nobody";
}

}  // namespace
}  // namespace baton::native
