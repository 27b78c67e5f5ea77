// The bytes of receives, as libmlx5 of rdma-core 44 wrote them.
#include "lib/verbs/mlx5/receive_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::verbs::mlx5 {
namespace {

constexpr ScatterGather kBuffers[] = {{0x1122334455667788, 0x10203, 0xa1b2c3d4},
                                      {0x99aabbccddeeff00, 0x40, 0x0badf00d},
                                      {0x1000, 0, 0x77}};

class ReceiveQueueTest : public ::testing::Test {
 protected:
  ReceiveQueueTest()
      : memory_(QueueMemory::Map(), &QueueMemory::Unmap), queue_(memory_->receive_queue()) {}

  absl::Status Post(uint64_t wr_id, absl::Span<const ScatterGather> sges) {
    const ReceiveRequest request = {wr_id, sges};
    size_t posted = 0;
    return queue_.Post({&request, 1}, &posted);
  }

  const std::unique_ptr<QueueMemory, void (*)(QueueMemory*)> memory_;
  ReceiveQueue queue_;
};

TEST_F(ReceiveQueueTest, shouldWriteWhatLibmlx5Writes) {
  ASSERT_TRUE(Post(11, {kBuffers, 1}).ok());
  ASSERT_TRUE(Post(12, {kBuffers, 2}).ok());
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(memory_->receives), 64}),
            "00010203a1b2c3d41122334455667788"
            "00000000000001000000000000000000"
            "00010203a1b2c3d41122334455667788"
            "000000400badf00d99aabbccddeeff00");
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(memory_->records), 8}),
            "0000000200000000");
  EXPECT_EQ(memory_->wr_ids[0], 11u);
  EXPECT_EQ(memory_->wr_ids[1], 12u);
}

TEST_F(ReceiveQueueTest, shouldSayWhatIsQueuedLast) {
  for (uint64_t wr_id = 1; wr_id < 70'000; ++wr_id) {
    ASSERT_EQ(queue_.LastQueued().value(), std::nullopt);
    ASSERT_TRUE(Post(2 * wr_id, {}).ok());
    ASSERT_TRUE(Post(2 * wr_id + 1, {}).ok());
    ASSERT_EQ(queue_.LastQueued().value(), 2 * wr_id + 1);
    ++memory_->cursors.received;
    ASSERT_EQ(queue_.LastQueued().value(), 2 * wr_id + 1);
    ++memory_->cursors.received;
  }
  memory_->cursors.received += 1;  // ahead of the record
  EXPECT_EQ(queue_.LastQueued().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ReceiveQueueTest, shouldBeReadAsItWasWritten) {
  for (size_t count = 0; count <= 2; ++count) {
    const uint32_t slot = queue_.queued() % kReceiveSlots;
    ASSERT_TRUE(Post(1, {kBuffers, count}).ok());
    std::vector<ScatterGather> found(2);
    ASSERT_EQ(ReadReceive(memory_->receives + size_t{slot} * kReceiveBytes, kReceiveBytes,
                          absl::MakeSpan(found)),
              count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(found[i].address, kBuffers[i].address);
      EXPECT_EQ(found[i].length, kBuffers[i].length);
      EXPECT_EQ(found[i].lkey, kBuffers[i].lkey);
    }
  }
}

TEST_F(ReceiveQueueTest, shouldTakeWhatItHasRoomForAndRefuseTheRest) {
  memory_->cursors.received = 0xfffe;
  StoreRecord(&memory_->records[MLX5_RCV_DBR], 0xfffe);
  const std::vector<ReceiveRequest> requests(kReceiveSlots + 1, ReceiveRequest{5, {kBuffers, 1}});
  size_t posted = 0;
  const absl::Status full = queue_.Post(requests, &posted);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(posted, kReceiveSlots);
  EXPECT_EQ(queue_.queued(), kReceiveSlots - 2);  // 16 bits
  memory_->cursors.received = 0xffff;
  EXPECT_TRUE(Post(6, {kBuffers, 1}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Post(7, kBuffers)));  // three, and room for two
}

}  // namespace
}  // namespace baton::verbs::mlx5
