#include "lib/verbs/mlx5/fifo_doorbell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/file_descriptor.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;

class FifoDoorbellTest : public ::testing::Test {
 protected:
  FifoDoorbellTest()
      : page_(std::make_unique<DoorbellPage>()), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    Restart();
  }

  // Another driver of the same page.
  void Restart() { bell_ = std::make_unique<FifoDoorbell>(page_.get(), wake_.get()); }

  // The three steps by which the NIC takes a value.
  uint64_t Read() const { return page_->sends[page_->sq_head % kSendPlaces]; }
  void StoreHead() { ++page_->sq_head; }
  void Clear() { page_->sends[(page_->sq_head - 1) % kSendPlaces] = 0; }
  std::vector<uint64_t> TakeAll() {
    std::vector<uint64_t> taken;
    while (const uint64_t value = Read()) {
      taken.push_back(value);
      StoreHead();
      Clear();
    }
    return taken;
  }
  bool TakeOverflow() {
    const bool overflow = (page_->attention & kOverflow) != 0;
    page_->attention = 0;
    return overflow;
  }
  bool Woken() {
    uint64_t count = 0;
    return read(wake_.get(), &count, sizeof(count)) == sizeof(count);
  }

  const std::unique_ptr<DoorbellPage> page_;
  const FileDescriptor wake_;
  std::unique_ptr<FifoDoorbell> bell_;
};

TEST_F(FifoDoorbellTest, shouldRingInOrder) {
  for (uint64_t round = 0; round < 3 * kSendPlaces; round += 2) {
    bell_->Ring(round + 1);
    bell_->Ring(round + 2);
    ASSERT_THAT(TakeAll(), ElementsAre(round + 1, round + 2));
  }
  bell_->Arm(7);
  EXPECT_EQ(page_->arms[0], 7u);
  EXPECT_EQ(page_->cq_tail, 1u);
  EXPECT_EQ(page_->attention, 0u);
}

TEST_F(FifoDoorbellTest, shouldOverflowWhereNoPlaceIsEmpty) {
  for (uint64_t i = 0; i < kSendPlaces; ++i) bell_->Ring(i + 1);
  EXPECT_FALSE(TakeOverflow());
  bell_->Ring(1000);
  EXPECT_TRUE(TakeOverflow());
  const std::vector<uint64_t> taken = TakeAll();
  ASSERT_EQ(taken.size(), kSendPlaces);
  EXPECT_EQ(taken.back(), kSendPlaces);
  bell_->Ring(1001);
  EXPECT_THAT(TakeAll(), ElementsAre(1001));
  for (uint64_t i = 0; i <= kArmPlaces; ++i) bell_->Arm(i + 1);
  EXPECT_TRUE(TakeOverflow());
}

TEST_F(FifoDoorbellTest, shouldWakeTheNicOnlyWhereItSleeps) {
  bell_->Ring(1);
  EXPECT_FALSE(Woken());
  page_->sleeping = 1;
  bell_->Ring(2);
  EXPECT_TRUE(Woken());
  bell_->Arm(2);
  EXPECT_TRUE(Woken());
  bell_->ReceivesPosted(5, 0);
  EXPECT_FALSE(Woken());
  bell_->ReceivesPosted(5, 1);
  EXPECT_TRUE(Woken());
}

TEST_F(FifoDoorbellTest, shouldAskForALookAtReceivesInTheErrorState) {
  bell_->ReceivesPosted(1, 0);
  EXPECT_EQ(page_->attention, 0u);
  for (uint32_t number = 1; number <= kLookPlaces; ++number) {
    bell_->ReceivesPosted(number, 1);
    bell_->ReceivesPosted(number, 1);
    EXPECT_EQ(page_->looks[number - 1], number);
  }
  EXPECT_EQ(page_->attention, kLook);
  bell_->ReceivesPosted(kLookPlaces + 1, 1);
  EXPECT_EQ(page_->attention, kLook | kOverflow);
}

// A driver was killed between any two of its steps, while the NIC was between any two of its own,
// with any number of values in the queue. Another one rings twice, and then the NIC goes on. It
// gets both, or is asked to look at the records; and then the page is as good as new.
TEST_F(FifoDoorbellTest, shouldTakeOverFromAKilledDriver) {
  int overflows = 0;
  for (uint32_t queued = 0; queued <= kSendPlaces; ++queued) {
    for (const bool killed_behind_value : {false, true}) {
      for (const int nic_steps : {0, 1, 2}) {  // head stored; and place cleared
        *page_ = {};
        page_->sq_head = page_->sq_tail = 0xffffff00u + 13;
        Restart();
        for (uint32_t i = 0; i < queued; ++i) bell_->Ring(i + 1);
        if (killed_behind_value) {
          if (queued == 0) continue;
          --page_->sq_tail;
        }
        if (nic_steps > 0) StoreHead();
        if (nic_steps > 1) Clear();
        if (nic_steps > 0 && queued == 0) continue;
        Restart();
        bell_->Ring(9001);
        bell_->Ring(9002);
        if (nic_steps == 1) Clear();
        const std::vector<uint64_t> taken = TakeAll();
        const bool overflow = TakeOverflow();
        overflows += overflow ? 1 : 0;
        ASSERT_TRUE(overflow || (taken.size() >= 2 && taken[taken.size() - 2] == 9001 &&
                                 taken[taken.size() - 1] == 9002))
            << queued << " queued, " << nic_steps << " steps";
        ASSERT_TRUE(!overflow || queued + 2 >= kSendPlaces) << queued;
        bell_->Ring(9003);
        ASSERT_THAT(TakeAll(), ElementsAre(9003)) << queued << " queued, " << nic_steps << " steps";
      }
    }
  }
  EXPECT_GT(overflows, 0);
}

}  // namespace
}  // namespace baton::verbs::mlx5
