#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/registers.h"
#include "lib/verbs/mlx5/fifo_doorbell.h"

namespace baton::nic {
namespace {

using ::testing::ElementsAre;
using verbs::mlx5::DoorbellPage;
using verbs::mlx5::FifoDoorbell;
using verbs::mlx5::kLook;
using verbs::mlx5::kLookPlaces;
using verbs::mlx5::kOverflow;
using verbs::mlx5::kSendPlaces;

class BellsTest : public ::testing::Test {
 protected:
  BellsTest()
      : page_(std::make_unique<DoorbellPage>()),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        bells_(nullptr, page_.get()),
        driver_(page_.get(), wake_.get()) {}

  std::vector<uint64_t> TakeAll() {
    std::vector<uint64_t> taken;
    for (uint64_t bytes = 0; bells_.TakeSend(&bytes);) taken.push_back(bytes);
    return taken;
  }

  const std::unique_ptr<DoorbellPage> page_;
  const FileDescriptor wake_;
  Bells bells_;
  FifoDoorbell driver_;
};

TEST_F(BellsTest, shouldTakeWhatIsRungInOrder) {
  EXPECT_TRUE(bells_.empty());
  for (uint64_t i = 0; i < 2 * kSendPlaces; i += 2) {
    driver_.Ring(i + 1);
    driver_.Ring(i + 2);
    EXPECT_FALSE(bells_.empty());
    ASSERT_THAT(TakeAll(), ElementsAre(i + 1, i + 2));
  }
  driver_.Arm(9);
  uint64_t bytes = 0;
  EXPECT_TRUE(bells_.TakeArm(&bytes));
  EXPECT_EQ(bytes, 9u);
  EXPECT_FALSE(bells_.TakeArm(&bytes));
  EXPECT_TRUE(bells_.empty());
}

TEST_F(BellsTest, shouldHearOfAnOverflowOnce) {
  for (uint64_t i = 0; i <= kSendPlaces; ++i) driver_.Ring(i + 1);
  EXPECT_FALSE(bells_.empty());
  EXPECT_EQ(bells_.TakeAttention(), kOverflow);
  EXPECT_EQ(bells_.TakeAttention(), 0u);
  EXPECT_EQ(TakeAll().size(), kSendPlaces);
}

TEST_F(BellsTest, shouldTakeLooks) {
  driver_.ReceivesPosted(5, 1);
  driver_.ReceivesPosted(6, 1);
  driver_.ReceivesPosted(5, 1);
  EXPECT_EQ(bells_.TakeAttention(), kLook);
  uint32_t looks[kLookPlaces];
  ASSERT_EQ(bells_.TakeLooks(absl::MakeSpan(looks)), 2u);
  EXPECT_EQ(looks[0], 5u);
  EXPECT_EQ(looks[1], 6u);
  EXPECT_EQ(bells_.TakeLooks(absl::MakeSpan(looks)), 0u);
}

TEST_F(BellsTest, shouldBeWokenOnlyWhereItSleeps) {
  uint64_t count = 0;
  driver_.Ring(1);
  EXPECT_LT(read(wake_.get(), &count, sizeof(count)), 0);
  bells_.SetSleeping(true);
  EXPECT_FALSE(bells_.empty());  // rung before: it does not sleep
  driver_.Ring(2);
  EXPECT_GT(read(wake_.get(), &count, sizeof(count)), 0);
  bells_.SetSleeping(false);
  driver_.Ring(3);
  EXPECT_LT(read(wake_.get(), &count, sizeof(count)), 0);
}

// A client can write anything there, which rings in vain.
TEST_F(BellsTest, shouldBearAnything) {
  std::mt19937_64 random(20261123);
  auto* const words = reinterpret_cast<uint64_t*>(page_.get());
  for (int round = 0; round < 2000; ++round) {
    for (int i = 0; i < 64; ++i) words[random() % 512] = random() % 4 == 0 ? 0 : random();
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < kSendPlaces && bells_.TakeSend(&bytes); ++i) EXPECT_NE(bytes, 0u);
    bells_.TakeAttention();
    uint32_t looks[kLookPlaces];
    EXPECT_LE(bells_.TakeLooks(absl::MakeSpan(looks)), kLookPlaces);
  }
}

}  // namespace
}  // namespace baton::nic
