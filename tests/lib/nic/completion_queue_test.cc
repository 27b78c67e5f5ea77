#include "lib/nic/completion_queue.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/queue_layout.h"

namespace baton::nic {
namespace {

using verbs::Completion;
using verbs::mlx5::ArmValue;
using verbs::mlx5::CompletionQueueLayout;
using verbs::mlx5::Executed;
using verbs::mlx5::QueuePairLayout;

constexpr CompletionQueueLayout kLayout = {8};
constexpr QueuePairLayout kQueuePair = {8, 8, 16};

// Gives what it is rung with to the device at once.
class DirectBell final : public verbs::mlx5::Doorbell {
 public:
  void Ring(uint64_t) override {}
  void Arm(uint64_t bytes) override { queue->Arm(be32toh(static_cast<uint32_t>(bytes))); }
  void ReceivesPosted(uint32_t, const uint32_t&) override {}
  CompletionQueue* queue = nullptr;
};

class NicCompletionQueueTest : public ::testing::Test {
 protected:
  NicCompletionQueueTest() {
    int ends[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    theirs_.Reset(ends[1]);
    const auto memory = kLayout.At(memory_);
    device_ = std::make_unique<CompletionQueue>(
        verbs::mlx5::FoundCompletionQueue{memory_ + CompletionQueueLayout::kEntries, memory.record,
                                          kLayout.entry_count, 64},
        memory.arm_record, std::make_shared<FileDescriptor>(ends[0]));
    bell_.queue = device_.get();
    driver_ = std::make_unique<verbs::mlx5::CompletionQueue>(memory, 5, &bell_);
    driver_->Add(kQueuePair.CompletingAt(queue_pair_, 1, 0));
  }

  void Write() {
    Executed executed;
    executed.kind = MLX5_CQE_RESP_SEND;
    executed.qp_number = 1;
    EXPECT_TRUE(device_->Write(executed));
  }
  void Poll() {
    Completion completion;
    EXPECT_EQ(driver_->Take({&completion, 1}).value_or(0), 1);
  }
  int Events() {
    uint8_t bytes[16];
    const ssize_t count = recv(theirs_.get(), bytes, sizeof(bytes), 0);
    return count < 0 ? 0 : static_cast<int>(count);
  }

  alignas(64) uint8_t memory_[kLayout.bytes()] = {};
  alignas(64) uint8_t queue_pair_[kQueuePair.bytes()] = {};
  FileDescriptor theirs_;
  DirectBell bell_;
  std::unique_ptr<CompletionQueue> device_;
  std::unique_ptr<verbs::mlx5::CompletionQueue> driver_;
};

TEST_F(NicCompletionQueueTest, shouldMakeOneEventForEachArm) {
  Write();
  EXPECT_EQ(Events(), 0);
  Poll();
  for (int round = 0; round < 20; ++round) {
    driver_->RequestNotification();
    EXPECT_EQ(Events(), 0);
    Write();
    Write();
    EXPECT_EQ(Events(), 1);
    Poll();
    Poll();
  }
}

TEST_F(NicCompletionQueueTest, shouldMakeTheEventOfWhatIsThere) {
  Write();
  driver_->RequestNotification();
  EXPECT_EQ(Events(), 1);
  // It was not polled: whoever asks again hears again.
  driver_->RequestNotification();
  EXPECT_EQ(Events(), 1);
}

// Rings come twice, or too late, or not at all: then the record is looked at.
TEST_F(NicCompletionQueueTest, shouldIgnoreAnArmWhoseEventWasMade) {
  driver_->RequestNotification();
  Write();
  EXPECT_EQ(Events(), 1);
  device_->Arm(ArmValue(0, 0));
  device_->ArmByRecord();
  EXPECT_EQ(Events(), 0);
}

TEST_F(NicCompletionQueueTest, shouldBeArmedByItsRecordAlone) {
  Write();
  Poll();
  CompletionQueue* const device = bell_.queue;
  class NoBell final : public verbs::mlx5::Doorbell {
   public:
    void Ring(uint64_t) override {}
    void Arm(uint64_t) override {}
    void ReceivesPosted(uint32_t, const uint32_t&) override {}
  } none;
  verbs::mlx5::CompletionQueue silent(kLayout.At(memory_), 5, &none);
  silent.RequestNotification();
  device->ArmByRecord();
  EXPECT_EQ(Events(), 0);
  Write();
  EXPECT_EQ(Events(), 1);
}

// A look at the record of a queue that nobody has armed makes an event in vain, and the first arm
// has its own all the same.
TEST_F(NicCompletionQueueTest, shouldNotLoseTheFirstArmByALook) {
  Write();
  device_->ArmByRecord();
  EXPECT_LE(Events(), 1);
  Poll();
  driver_->RequestNotification();
  EXPECT_EQ(Events(), 0);
  Write();
  EXPECT_EQ(Events(), 1);
}

TEST_F(NicCompletionQueueTest, shouldNotWaitForWhoDoesNotReadEvents) {
  for (int i = 0; i < 10'000; ++i) {
    driver_->RequestNotification();
    Write();
    Poll();
  }
  EXPECT_GT(Events(), 0);
}

}  // namespace
}  // namespace baton::nic
