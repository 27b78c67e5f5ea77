// These tests write receives as libmlx5 of rdma-core 44 wrote them, and drive a queue pair whose
// device obeys.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;

constexpr ScatterGather kReceiveBuffers[] = {{0x1122334455667788, 0x10203, 0xa1b2c3d4},
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
  ASSERT_TRUE(Post(11, {kReceiveBuffers, 1}).ok());
  ASSERT_TRUE(Post(12, {kReceiveBuffers, 2}).ok());
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
    ASSERT_TRUE(Post(1, {kReceiveBuffers, count}).ok());
    std::vector<ScatterGather> found(2);
    ASSERT_EQ(ReadReceive(memory_->receives + size_t{slot} * kReceiveBytes, kReceiveBytes,
                          absl::MakeSpan(found)),
              count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(found[i].address, kReceiveBuffers[i].address);
      EXPECT_EQ(found[i].length, kReceiveBuffers[i].length);
      EXPECT_EQ(found[i].lkey, kReceiveBuffers[i].lkey);
    }
  }
}

TEST_F(ReceiveQueueTest, shouldTakeWhatItHasRoomForAndRefuseTheRest) {
  memory_->cursors.received = 0xfffe;
  StoreRecord(&memory_->records[MLX5_RCV_DBR], 0xfffe);
  const std::vector<ReceiveRequest> requests(kReceiveSlots + 1,
                                             ReceiveRequest{5, {kReceiveBuffers, 1}});
  size_t posted = 0;
  const absl::Status full = queue_.Post(requests, &posted);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(posted, kReceiveSlots);
  EXPECT_EQ(queue_.queued(), kReceiveSlots - 2);  // 16 bits
  memory_->cursors.received = 0xffff;
  EXPECT_TRUE(Post(6, {kReceiveBuffers, 1}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Post(7, kReceiveBuffers)));  // three, and room for two
}

constexpr QueuePairLayout kLayout = {kSendSlots, kReceiveSlots, kReceiveBytes};

// A device that obeys.
class FakeCommands final : public Commands {
 public:
  absl::Status Modify(uint32_t, QueuePairState to) override {
    state = to;
    return absl::OkStatus();
  }
  absl::StatusOr<QueuePairState> Query(uint32_t) override {
    ++queries;
    if (lost) return absl::UnavailableError("lost");
    return state;
  }
  void DestroyQueuePair(uint32_t number) override { destroyed = number; }

  QueuePairState state = QueuePairState::kInit;
  int queries = 0;
  bool lost = false;
  uint32_t destroyed = 0;
};

class QueuePairTest : public ::testing::Test {
 protected:
  QueuePairTest() : queue_pair_(Make()) {}

  std::unique_ptr<QueuePair> Make() {
    return std::make_unique<QueuePair>(kLayout.MemoryAt(memory_), kQueuePair, SendQueueLimits{1, 0},
                                       &commands_, &doorbell_);
  }
  absl::Status Send() {
    const SendRequest request;
    size_t posted = 0;
    return queue_pair_->PostSend({&request, 1}, &posted);
  }
  absl::Status Receive() {
    const ReceiveRequest request;
    size_t posted = 0;
    return queue_pair_->PostReceive({&request, 1}, &posted);
  }

  alignas(64) uint8_t memory_[kLayout.bytes()] = {};
  FakeCommands commands_;
  RememberingDoorbell doorbell_;
  std::unique_ptr<QueuePair> queue_pair_;
};

TEST_F(QueuePairTest, shouldSendOnlyWhenItIsConnected) {
  EXPECT_TRUE(absl::IsFailedPrecondition(Send()));
  EXPECT_TRUE(Receive().ok());
  commands_.state = QueuePairState::kReadyToSend;
  EXPECT_TRUE(Send().ok());
  EXPECT_TRUE(Send().ok());
  EXPECT_EQ(commands_.queries, 2);  // not for every send
  EXPECT_EQ(doorbell_.rung.size(), 2u);
  EXPECT_THAT(doorbell_.posted, ElementsAre(kQueuePair));
}

TEST_F(QueuePairTest, shouldTakeTheWordOfAnotherProcess) {
  queue_pair_->NoteConnected(true);
  EXPECT_TRUE(Send().ok());
  EXPECT_EQ(commands_.queries, 0);
}

TEST_F(QueuePairTest, shouldTellOfAllThatIsQueuedWhenItIsTakenOver) {
  queue_pair_->NoteConnected(true);
  ASSERT_TRUE(Send().ok());
  doorbell_.rung.clear();
  queue_pair_ = Make();
  queue_pair_->TakeOver();
  ASSERT_EQ(doorbell_.rung.size(), 1u);
  __be32 words[2];
  std::memcpy(words, &doorbell_.rung[0], sizeof(words));
  EXPECT_EQ(be32toh(words[0]), 1u << 8);
  EXPECT_EQ(be32toh(words[1]), kQueuePair << 8);
  EXPECT_THAT(doorbell_.posted, ElementsAre(kQueuePair));
  EXPECT_EQ(queue_pair_->sends_queued(), 1);
}

TEST_F(QueuePairTest, shouldBeAsNewAfterAReset) {
  queue_pair_->NoteConnected(true);
  ASSERT_TRUE(Send().ok());
  ASSERT_TRUE(Receive().ok());
  auto* const cursors = reinterpret_cast<QueueCursors*>(memory_ + QueuePairLayout::kCursors);
  *cursors = {4, 1, 1};
  ASSERT_TRUE(queue_pair_->SetReset().ok());
  EXPECT_EQ(queue_pair_->state(), QueuePairState::kReset);
  EXPECT_EQ(queue_pair_->sends_queued(), 0);
  EXPECT_EQ(queue_pair_->receives_queued(), 0);
  EXPECT_EQ(cursors->use, 5u);
  EXPECT_EQ(cursors->sent, 0);
  EXPECT_EQ(cursors->received, 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(Send()));
  ASSERT_TRUE(queue_pair_->SetInit().ok());
  EXPECT_EQ(queue_pair_->state(), QueuePairState::kInit);
}

TEST_F(QueuePairTest, shouldSendInTheErrorStateAndBeInItWithoutADevice) {
  ASSERT_TRUE(queue_pair_->SetError().ok());
  EXPECT_TRUE(Send().ok());
  commands_.state = QueuePairState::kReadyToSend;
  commands_.lost = true;
  EXPECT_EQ(queue_pair_->state(), QueuePairState::kError);
}

TEST_F(QueuePairTest, shouldTakeNoReceivesIfItSharesThem) {
  constexpr QueuePairLayout kSharing = {kSendSlots, 0, kReceiveBytes};
  queue_pair_ = std::make_unique<QueuePair>(kSharing.MemoryAt(memory_), kQueuePair,
                                            SendQueueLimits{1, 0}, &commands_, &doorbell_);
  EXPECT_TRUE(absl::IsFailedPrecondition(Receive()));
  queue_pair_->TakeOver();
  EXPECT_THAT(doorbell_.posted, ElementsAre());
}

// An heir has many queues that are idle, and each ring may have to wake the device.
TEST_F(QueuePairTest, shouldNotRingForWhatHasCompletedWhenItIsTakenOver) {
  queue_pair_->NoteConnected(true);
  ASSERT_TRUE(Send().ok());
  reinterpret_cast<QueueCursors*>(memory_ + QueuePairLayout::kCursors)->sent = 1;
  doorbell_.rung.clear();
  queue_pair_ = Make();
  queue_pair_->TakeOver();
  EXPECT_TRUE(doorbell_.rung.empty());
}

TEST_F(QueuePairTest, shouldEndWithItsObject) {
  queue_pair_.reset();
  EXPECT_EQ(commands_.destroyed, kQueuePair);
}

}  // namespace
}  // namespace baton::verbs::mlx5
