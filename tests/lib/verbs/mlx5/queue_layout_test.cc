#include "lib/verbs/mlx5/queue_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace baton::verbs::mlx5 {
namespace {

TEST(QueueLayoutTest, shouldLayOutAQueuePairAsWritten) {
  constexpr QueuePairLayout kLayout = {16, 8, 32};
  static_assert(QueuePairLayout::kRecords == 0x000 && QueuePairLayout::kFailed == 0x008);
  static_assert(QueuePairLayout::kCursors == 0x040 && QueuePairLayout::kSends == 0x080);
  EXPECT_EQ(kLayout.receives(), 0x480u);
  EXPECT_EQ(kLayout.notes(), 0x580u);
  EXPECT_EQ(kLayout.wr_ids(), 0x680u);
  EXPECT_EQ(kLayout.bytes(), 0x6c0u);

  std::vector<uint8_t> memory(kLayout.bytes());
  uint8_t* const begin = memory.data();
  const auto at = [begin](const void* place) { return static_cast<const uint8_t*>(place) - begin; };
  EXPECT_EQ(at(kLayout.SendsAt(begin).record), 0x004);
  EXPECT_EQ(at(kLayout.SendsAt(begin).cursors), 0x040);
  EXPECT_EQ(at(kLayout.SendsAt(begin).slots), 0x080);
  EXPECT_EQ(at(kLayout.SendsAt(begin).notes), 0x580);
  EXPECT_EQ(at(kLayout.ReceivesAt(begin).record), 0x000);
  EXPECT_EQ(at(kLayout.ReceivesAt(begin).slots), 0x480);
  EXPECT_EQ(at(kLayout.ReceivesAt(begin).wr_ids), 0x680);
  EXPECT_EQ(at(QueuePairLayout::FailedAt(begin)), 0x008);
  EXPECT_EQ(at(kLayout.CompletingAt(begin, 1, 2).cursors), 0x040);
}

TEST(QueueLayoutTest, shouldLayOutACompletionQueueAsWritten) {
  constexpr CompletionQueueLayout kLayout = {8};
  EXPECT_EQ(kLayout.bytes(), 0x280u);
  std::vector<uint8_t> memory(kLayout.bytes());
  uint8_t* const begin = memory.data();
  const CompletionQueueMemory queue = kLayout.At(begin);
  const auto at = [begin](const void* place) { return static_cast<const uint8_t*>(place) - begin; };
  EXPECT_EQ(at(queue.record), 0x000);
  EXPECT_EQ(at(queue.arm_record), 0x004);
  EXPECT_EQ(at(queue.taken), 0x040);
  EXPECT_EQ(at(queue.arming), 0x048);
  EXPECT_EQ(at(queue.entries), 0x080);
}

TEST(QueueLayoutTest, shouldHaveRoomForWhatIsAsked) {
  QueuePairOptions options;
  options.max_send_requests = 100;
  options.max_receive_requests = 50;
  options.max_scatter_gather = 3;
  options.max_inline_data = 100;
  const absl::StatusOr<QueuePairLayout> layout = LayOut(options);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->send_slots, 512u);  // of three slots each
  EXPECT_EQ(layout->receive_slots, 64u);
  EXPECT_EQ(layout->receive_bytes, 64u);
}

TEST(QueueLayoutTest, shouldRefuseWhatTheFormatHasNot) {
  QueuePairOptions options;
  options.max_send_requests = 4096;
  options.max_inline_data = 512;
  EXPECT_TRUE(absl::IsInvalidArgument(LayOut(options).status()));
  options.max_send_requests = 1;
  options.max_inline_data = 973;
  EXPECT_TRUE(absl::IsInvalidArgument(LayOut(options).status()));
  options.max_inline_data = 972;
  EXPECT_TRUE(LayOut(options).ok());
  options.max_receive_requests = kMaxSlots + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(LayOut(options).status()));
  options.max_receive_requests = 1;
  options.max_scatter_gather = 33;
  EXPECT_TRUE(absl::IsInvalidArgument(LayOut(options).status()));
}

}  // namespace
}  // namespace baton::verbs::mlx5
