#include "lib/verbs/mlx5/queue_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;

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
    return std::make_unique<QueuePair>(kLayout, memory_, kQueuePair, SendQueueLimits{1, 0},
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

TEST_F(QueuePairTest, shouldTellOfAllThatIsQueuedWhenItResumes) {
  queue_pair_->NoteConnected(true);
  ASSERT_TRUE(Send().ok());
  doorbell_.rung.clear();
  queue_pair_ = Make();
  queue_pair_->Resume();
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
  queue_pair_ = std::make_unique<QueuePair>(kSharing, memory_, kQueuePair, SendQueueLimits{1, 0},
                                            &commands_, &doorbell_);
  EXPECT_TRUE(absl::IsFailedPrecondition(Receive()));
  queue_pair_->Resume();
  EXPECT_EQ(doorbell_.rung.size(), 1u);
  EXPECT_THAT(doorbell_.posted, ElementsAre());
}

TEST_F(QueuePairTest, shouldEndWithItsObject) {
  queue_pair_.reset();
  EXPECT_EQ(commands_.destroyed, kQueuePair);
}

}  // namespace
}  // namespace baton::verbs::mlx5
