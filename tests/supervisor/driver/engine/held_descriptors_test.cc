#include "supervisor/driver/engine/held_descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

namespace baton::driver_process {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kWorker = 7, kOther = 8;

FileDescriptor One() { return FileDescriptor(eventfd(0, EFD_CLOEXEC)); }

TEST(HeldDescriptorsTest, shouldFindWhatItHolds) {
  HeldDescriptors held;
  FileDescriptor one = One();
  const int number_of_it = one.get();
  const uint64_t number = held.Hold(kWorker, 0, std::move(one)).value();
  EXPECT_NE(number, 0u);
  EXPECT_EQ(held.Find(number), number_of_it);
  EXPECT_EQ(held.Find(number + 1), -1);
  EXPECT_EQ(held.Find(0), -1);
}

TEST(HeldDescriptorsTest, shouldGiveNoNumberTwice) {
  HeldDescriptors held;
  const uint64_t first = held.Hold(kWorker, 0, One()).value();
  EXPECT_TRUE(held.Take(first));
  const uint64_t second = held.Hold(kWorker, 0, One()).value();
  EXPECT_NE(first, second);
  EXPECT_EQ(held.Find(first), -1);
}

TEST(HeldDescriptorsTest, shouldTakeOutOnceAndLeaveTheCloseToTheCaller) {
  HeldDescriptors held;
  const uint64_t number = held.Hold(kWorker, 0, One()).value();
  const FileDescriptor taken = held.Take(number);
  ASSERT_TRUE(taken);
  EXPECT_NE(fcntl(taken.get(), F_GETFD), -1);
  EXPECT_FALSE(held.Take(number));
  EXPECT_EQ(held.count(), 0u);
}

TEST(HeldDescriptorsTest, shouldHoldNoMoreThanItMay) {
  HeldDescriptors held;
  for (uint32_t i = 0; i < HeldDescriptors::kMost; ++i) {
    ASSERT_TRUE(held.Hold(kWorker, 0, One()).ok());
  }
  EXPECT_EQ(held.Hold(kOther, 0, One()).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(held.Take(1));
  EXPECT_TRUE(held.Hold(kOther, 0, One()).ok());
}

TEST(HeldDescriptorsTest, shouldListByTagWhosesoeverTheyAre) {
  HeldDescriptors held;
  const uint64_t first = held.Hold(kWorker, 1, One()).value();
  const uint64_t second = held.Hold(kWorker, 2, One()).value();
  const uint64_t third = held.Hold(kOther, 1, One()).value();
  EXPECT_THAT(held.Numbers(1), ElementsAre(first, third));
  EXPECT_THAT(held.Numbers(2), ElementsAre(second));
  EXPECT_THAT(held.Numbers(0), IsEmpty());
}

TEST(HeldDescriptorsTest, shouldKeepThoseOfAWorkerThatIsGone) {
  HeldDescriptors held;
  const uint64_t number = held.Hold(kWorker, 0, One()).value();
  ASSERT_TRUE(held.Hold(kOther, 0, One()).ok());
  EXPECT_EQ(held.CountOf(kWorker), 1u);
  held.Forget(kWorker);
  EXPECT_EQ(held.CountOf(kWorker), 0u);
  EXPECT_EQ(held.count(), 2u);
  EXPECT_NE(held.Find(number), -1);
}

}  // namespace
}  // namespace baton::driver_process
