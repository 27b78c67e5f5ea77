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
  EXPECT_EQ(at(queue.former), 0x04c);
  EXPECT_EQ(at(queue.entries), 0x080);
}

TEST(QueueLayoutTest, shouldLayOutASharedReceiveQueueAsWritten) {
  constexpr SharedReceiveQueueLayout kLayout = {16, 32};
  static_assert(SharedReceiveQueueLayout::kRecord == 0x000);
  static_assert(SharedReceiveQueueLayout::kFreed == 0x040);
  static_assert(SharedReceiveQueueLayout::kSlots == 0x080);
  EXPECT_EQ(kLayout.wr_ids(), 0x280u);
  EXPECT_EQ(kLayout.order(), 0x300u);
  EXPECT_EQ(kLayout.bytes(), 0x340u);
  std::vector<uint8_t> memory(kLayout.bytes());
  uint8_t* const begin = memory.data();
  const SharedReceiveQueueMemory queue = kLayout.At(begin);
  const auto at = [begin](const void* place) { return static_cast<const uint8_t*>(place) - begin; };
  EXPECT_EQ(at(queue.record), 0x000);
  EXPECT_EQ(at(queue.freed), 0x040);
  EXPECT_EQ(at(queue.slots), 0x080);
  EXPECT_EQ(at(queue.wr_ids), 0x280);
  EXPECT_EQ(at(queue.order), 0x300);
  EXPECT_EQ(queue.slot_count, 16u);
  EXPECT_EQ(queue.slot_bytes, 32u);
}

TEST(QueueLayoutTest, shouldHaveRoomForSharedReceives) {
  absl::StatusOr<SharedReceiveQueueLayout> layout = LayOutShared(8, 3);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->slot_count, 16u);  // one is left unposted
  EXPECT_EQ(layout->slot_bytes, 64u);
  layout = LayOutShared(0, 0);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->slot_count, 2u);
  EXPECT_EQ(layout->slot_bytes, 32u);
  layout = LayOutShared(kMaxSlots - 1, 31);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->slot_count, kMaxSlots);
  EXPECT_EQ(layout->slot_bytes, 512u);
  EXPECT_TRUE(absl::IsInvalidArgument(LayOutShared(kMaxSlots, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LayOutShared(1, 32).status()));
}

TEST(QueueLayoutTest, shouldHaveNoReceivesBesideASharedQueue) {
  SharedReceiveQueue shared({}, 1, nullptr);
  QueuePairOptions options;
  options.max_receive_requests = 50;
  options.shared_receive_queue = &shared;
  const absl::StatusOr<QueuePairLayout> layout = LayOut(options);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->receive_slots, 0u);
  EXPECT_EQ(layout->receives(), layout->notes());
  EXPECT_EQ(layout->wr_ids(), layout->bytes());
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

TEST(QueueLayoutTest, shouldHaveOneSlotForAWriteWithoutData) {
  QueuePairOptions options;
  options.max_send_requests = 12;
  options.max_empty_writes = 8;
  options.max_scatter_gather = 4;
  const absl::StatusOr<QueuePairLayout> layout = LayOut(options);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->send_slots, 16u);  // 4 of two slots, and 8
  options.max_send_requests = 1;
  EXPECT_EQ(LayOut(options)->send_slots, 1u);
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
