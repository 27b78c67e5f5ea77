#include <array>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/request_reader.h"
#include "tests/lib/verbs/mlx5/shared_queue.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kSlots = 32;

class SeenSlotsTest : public ::testing::Test {
 protected:
  uint8_t* SlotOf(uint16_t counter) { return &slots_[counter % kSlots * kSlotBytes]; }
  void See(uint16_t next, uint16_t queued) { seen_.See(slots_.data(), kSlots, next, queued); }
  bool IsUnchanged(uint16_t counter) { return seen_.IsUnchanged(counter, SlotOf(counter)); }

  std::array<uint8_t, kSlots* kSlotBytes> slots_ = {};
  SeenSlots seen_;
};

TEST_F(SeenSlotsTest, shouldNoticeAChangeOfWhatItHasSeen) {
  See(0, 3);
  EXPECT_TRUE(IsUnchanged(1));
  SlotOf(1)[63] = 1;
  EXPECT_FALSE(IsUnchanged(1));
  EXPECT_TRUE(IsUnchanged(2));
}

TEST_F(SeenSlotsTest, shouldNotKnowWhatItHasNotSeen) {
  See(0, 3);
  SlotOf(3)[0] = 1;
  EXPECT_TRUE(IsUnchanged(3));
  See(0, 4);
  SlotOf(3)[0] = 2;
  EXPECT_FALSE(IsUnchanged(3));
}

TEST_F(SeenSlotsTest, shouldForgetWhatWasExecuted) {
  See(0, 3);
  See(2, 3);
  SlotOf(1)[0] = 1;
  EXPECT_TRUE(IsUnchanged(1));
  See(20, 20);
  SlotOf(2)[0] = 1;
  EXPECT_TRUE(IsUnchanged(2));
}

TEST_F(SeenSlotsTest, shouldSeeAFewSlotsAheadAndGoOnAroundTheCounters) {
  constexpr uint16_t kFirst = 0xfffa;
  const uint16_t behind = static_cast<uint16_t>(kFirst + SeenSlots::kMost);
  See(kFirst, static_cast<uint16_t>(kFirst + kSlots));
  SlotOf(behind)[0] = 1;
  EXPECT_TRUE(IsUnchanged(behind));
  See(kFirst + 1, static_cast<uint16_t>(kFirst + kSlots));
  SlotOf(behind)[0] = 2;
  EXPECT_FALSE(IsUnchanged(behind));
}

// Neither is what a correct client does.
TEST_F(SeenSlotsTest, shouldTakeARecordThatGoesBackOrTooFar) {
  See(0, 8);
  See(0, 2);
  SlotOf(5)[0] = 1;
  EXPECT_FALSE(IsUnchanged(5));
  See(0, kSlots + 1);
  EXPECT_FALSE(IsUnchanged(5));
}

constexpr ScatterGather kSharedReceiveBuffers[] = {{0x1122334455667788, 0x10203, 0xa1b2c3d4},
                                                   {0x99aabbccddeeff00, 0x40, 0x0badf00d},
                                                   {0x1000, 0x20, 0x77},
                                                   {0x2000, 0x20, 0x77}};

class SharedReceiveQueueTest : public ::testing::Test {
 protected:
  // A device that knows of no shared receive queue's limit.
  class PlainCommands : public Commands {
   public:
    absl::Status Modify(uint32_t, QueuePairState) override { return absl::OkStatus(); }
    absl::StatusOr<QueuePairState> Query(uint32_t) override { return QueuePairState::kInit; }
    void DestroyQueuePair(uint32_t) override {}
  };
  class LimitCommands final : public PlainCommands {
   public:
    absl::Status ArmLimit(uint32_t number, uint32_t limit) override {
      armed = {number, limit};
      return absl::OkStatus();
    }
    std::pair<uint32_t, uint32_t> armed;
  };

  SharedReceiveQueueTest() { Restart(); }

  // Another driver follows, which has not taken over yet.
  void Restart() { driver_ = std::make_unique<SharingDriver>(&shared_, &commands_); }
  absl::Status Post(uint64_t wr_id, absl::Span<const ScatterGather> sges) {
    const ReceiveRequest request = {wr_id, sges};
    size_t posted = 0;
    return driver_->receives.PostReceive({&request, 1}, &posted);
  }
  bool IsQueued(uint64_t wr_id) { return driver_->receives.IsQueued(wr_id).value(); }
  // Takes the completion of one receive.
  Completion One(size_t queue) {
    Completion completion;
    const absl::StatusOr<int> taken = driver_->queues[queue].Take({&completion, 1});
    EXPECT_TRUE(taken.ok() && *taken == 1) << taken.status();
    return completion;
  }
  std::string Refused(size_t queue) {
    Completion completion;
    const absl::Status status = driver_->queues[queue].Take({&completion, 1}).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }

  SharedQueue shared_;
  LimitCommands commands_;
  std::unique_ptr<SharingDriver> driver_;
};

// libmlx5 of rdma-core 44 wrote the same bytes.
TEST_F(SharedReceiveQueueTest, shouldWriteWhatLibmlx5Writes) {
  ASSERT_TRUE(Post(11, {kSharedReceiveBuffers, 1}).ok());
  ASSERT_TRUE(Post(12, {kSharedReceiveBuffers, 3}).ok());
  EXPECT_EQ(
      absl::BytesToHexString({reinterpret_cast<const char*>(shared_.memory().slots), 48 + 64}),
      "00000001000000000000000000000000"
      "00010203a1b2c3d41122334455667788"
      "00000000000001000000000000000000"
      "00000000000000000000000000000000"  // not written
      "00000002000000000000000000000000"
      "00010203a1b2c3d41122334455667788"
      "000000400badf00d99aabbccddeeff00");
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(shared_.begin()), 8}),
            "0000000200000000");
  EXPECT_EQ(shared_.memory().wr_ids[0], 11u);
  EXPECT_EQ(shared_.memory().wr_ids[1], 12u);
}

TEST_F(SharedReceiveQueueTest, shouldBeReadAsItWasWritten) {
  for (size_t count = 0; count <= kSharedBuffers; ++count) {
    ASSERT_TRUE(Post(1, {kSharedReceiveBuffers, count}).ok());
    const auto taken = shared_.Take();
    ASSERT_TRUE(taken.ok() && taken->has_value()) << taken.status();
    EXPECT_EQ((*taken)->slot, count);
    ASSERT_EQ((*taken)->sge_count, count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(shared_.buffers[i].address, kSharedReceiveBuffers[i].address);
      EXPECT_EQ(shared_.buffers[i].length, kSharedReceiveBuffers[i].length);
      EXPECT_EQ(shared_.buffers[i].lkey, kSharedReceiveBuffers[i].lkey);
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Post(7, kSharedReceiveBuffers)));  // four, and room for three
}

TEST_F(SharedReceiveQueueTest, shouldSayWhichAreQueued) {
  EXPECT_FALSE(IsQueued(0));  // as the table is at first
  for (uint64_t first = 100; first < 5000; first += 100) {
    ASSERT_EQ(driver_->Post(first, 5), 5u);
    const std::vector<uint16_t> slots = shared_.TakeAll();
    ASSERT_EQ(slots.size(), 5u);
    for (const size_t done : {3, 0, 4, 1, 2}) {
      EXPECT_TRUE(IsQueued(first + done));
      ASSERT_TRUE(shared_.Complete(2, slots[done]));
      EXPECT_TRUE(IsQueued(first + done));  // nobody has polled it
      ASSERT_EQ(One(1).wr_id, first + done);
      EXPECT_FALSE(IsQueued(first + done));
    }
  }
}

// Other processes can write all of it.
TEST_F(SharedReceiveQueueTest, shouldRefuseToSayWhatMakesNoSense) {
  const auto refused = [this] {
    const absl::Status status = driver_->receives.IsQueued(1).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  };
  ASSERT_TRUE(Post(1, {}).ok());
  StoreRecord(shared_.memory().record, kSharedSlots);
  EXPECT_THAT(refused(), HasSubstr("8 receives are outstanding in a shared queue of 8 slots"));
  StoreRecord(shared_.memory().record, 1);
  shared_.memory().order[3] = 3 ^ 5;
  EXPECT_THAT(refused(), HasSubstr("slot 5 of a shared queue is free twice"));
}

// A segment of length 0 would be one of 2 GiB.
TEST_F(SharedReceiveQueueTest, shouldLeaveOutBuffersWithoutBytes) {
  const ScatterGather sges[] = {{0x1000, 0, 5}, kSharedReceiveBuffers[1]};
  ASSERT_TRUE(Post(1, sges).ok());
  const auto taken = shared_.Take();
  ASSERT_TRUE(taken.ok() && taken->has_value());
  ASSERT_EQ((*taken)->sge_count, 1u);
  EXPECT_EQ(shared_.buffers[0].address, kSharedReceiveBuffers[1].address);
}

TEST_F(SharedReceiveQueueTest, shouldLeaveOneSlotUnposted) {
  const std::vector<ReceiveRequest> requests(kSharedSlots,
                                             ReceiveRequest{5, {kSharedReceiveBuffers, 1}});
  size_t posted = 0;
  const absl::Status full = driver_->receives.PostReceive(requests, &posted);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(posted, kSharedSlots - 1);
  EXPECT_EQ(driver_->receives.receives_queued(), kSharedSlots - 1);
  EXPECT_EQ(shared_.TakeAll().size(), kSharedSlots - 1);
  EXPECT_TRUE(
      absl::IsResourceExhausted(Post(6, {kSharedReceiveBuffers, 1})));  // taken, and not completed
  ASSERT_TRUE(shared_.Complete(0, 3));
  EXPECT_EQ(One(0).wr_id, 5u);
  EXPECT_TRUE(Post(6, {kSharedReceiveBuffers, 1}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Post(6, {kSharedReceiveBuffers, 1})));
}

TEST_F(SharedReceiveQueueTest, shouldPostSlotsInTheOrderInWhichTheyWereFreed) {
  ASSERT_EQ(driver_->Post(100, 5), 5u);
  EXPECT_THAT(shared_.TakeAll(), ElementsAre(0, 1, 2, 3, 4));
  for (const uint16_t slot : {3, 0, 4}) ASSERT_TRUE(shared_.Complete(0, slot));
  EXPECT_THAT(driver_->Poll(0), ElementsAre(103, 100, 104));
  ASSERT_EQ(driver_->Post(200, 5), 5u);
  EXPECT_THAT(shared_.TakeAll(), ElementsAre(5, 6, 7, 3, 0));
  EXPECT_EQ(driver_->Post(300, 1), 0u);
  ASSERT_TRUE(shared_.Complete(0, 1));
  EXPECT_THAT(driver_->Poll(0), ElementsAre(101));
  ASSERT_EQ(driver_->Post(300, 1), 1u);
  EXPECT_THAT(shared_.TakeAll(), ElementsAre(4));
}

TEST_F(SharedReceiveQueueTest, shouldGiveReceivesToAllItsQueuePairs) {
  ASSERT_EQ(driver_->Post(100, 4), 4u);
  ASSERT_EQ(shared_.TakeAll().size(), 4u);
  ASSERT_TRUE(shared_.Complete(1, 2));
  ASSERT_TRUE(shared_.CompleteSend(0, 7));
  ASSERT_TRUE(shared_.Complete(0, 0, {.kind = MLX5_CQE_RESP_SEND_IMM, .immediate = 5}));
  ASSERT_TRUE(shared_.Complete(
      0, 1, {.kind = MLX5_CQE_RESP_SEND, .status = CompletionStatus::kFlushError}));
  ASSERT_TRUE(shared_.Complete(2, 3));
  Completion completion = One(0);
  EXPECT_EQ(completion.wr_id, 102u);
  EXPECT_EQ(completion.qp_number, kQueuePair + 1);
  EXPECT_EQ(One(0).wr_id, 7u);
  completion = One(0);
  EXPECT_EQ(completion.wr_id, 100u);
  EXPECT_EQ(completion.qp_number, kQueuePair);
  EXPECT_EQ(completion.immediate, 5u);
  completion = One(0);
  EXPECT_EQ(completion.wr_id, 101u);
  EXPECT_EQ(completion.status, CompletionStatus::kFlushError);
  completion = One(1);
  EXPECT_EQ(completion.wr_id, 103u);
  EXPECT_EQ(completion.qp_number, kQueuePair + 2);
  // The cursors count what each queue pair has received.
  EXPECT_EQ(shared_.pair(0).cursors.sent, 1);
  EXPECT_EQ(shared_.pair(0).cursors.received, 2);
  EXPECT_EQ(shared_.pair(1).cursors.received, 1);
  EXPECT_EQ(driver_->Post(200, kSharedSlots), kSharedSlots - 1);
}

// libmlx5 finds the shared queue by it. Errors have it at the same place.
TEST_F(SharedReceiveQueueTest, shouldBeNamedInCompletions) {
  ASSERT_TRUE(shared_.Complete(0, 6));
  ASSERT_TRUE(shared_.Complete(
      0, 6, {.kind = MLX5_CQE_RESP_SEND, .status = CompletionStatus::kFlushError}));
  const auto* const entries = reinterpret_cast<const mlx5_cqe64*>(shared_.queue(0).entries);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(be32toh(entries[i].srqn_uidx), kSharedQueue);
    EXPECT_EQ(be16toh(entries[i].wqe_counter), 6);
  }
}

// Counters go around, receives complete in any order, in any queue, and drivers follow each other.
TEST_F(SharedReceiveQueueTest, shouldKeepEachSlotInOnePlace) {
  constexpr int kTurns = 400'000;
  std::mt19937 random(20261124);
  std::deque<uint64_t> posted;
  std::map<uint16_t, uint64_t> taken;  // by slot
  std::array<std::deque<uint64_t>, kSharingQueues> completed;
  uint64_t wr_id = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const size_t outstanding =
        posted.size() + taken.size() + completed[0].size() + completed[1].size();
    const size_t count = random() % 4;
    const size_t room = kSharedSlots - 1 - outstanding;
    ASSERT_EQ(driver_->Post(wr_id, count), std::min(count, room));
    for (size_t i = 0; i < std::min(count, room); ++i) posted.push_back(wr_id++);
    while (!posted.empty() && random() % 3 != 0) {
      const auto receive = shared_.Take();
      ASSERT_TRUE(receive.ok() && receive->has_value()) << receive.status();
      ASSERT_EQ(shared_.buffers[0].address, posted.front());
      ASSERT_TRUE(taken.emplace((*receive)->slot, posted.front()).second);
      posted.pop_front();
    }
    while (!taken.empty() && random() % 3 != 0) {
      const auto which = std::next(taken.begin(), static_cast<int>(random() % taken.size()));
      const size_t pair = random() % kSharingPairs;
      ASSERT_TRUE(shared_.Complete(pair, which->first));
      completed[QueueOf(pair)].push_back(which->second);
      taken.erase(which);
    }
    const size_t queue = random() % kSharingQueues;
    for (; !completed[queue].empty() && random() % 4 != 0; completed[queue].pop_front()) {
      ASSERT_EQ(One(queue).wr_id, completed[queue].front());
    }
    if (random() % 64 == 0) {
      Restart();
      driver_->TakeOver();
    }
  }
  EXPECT_GT(wr_id, 1u << 17);
}

TEST_F(SharedReceiveQueueTest, shouldRefuseACompletionWithoutReceive) {
  ASSERT_TRUE(shared_.Complete(0, 0));
  EXPECT_THAT(Refused(0), HasSubstr("names slot 0 of its shared queue, where no receive is"));
  ASSERT_EQ(driver_->Post(100, 1), 1u);
  EXPECT_EQ(One(0).wr_id, 100u);
  ASSERT_EQ(driver_->Post(101, 1), 1u);
  ASSERT_TRUE(shared_.Complete(2, kSharedSlots));
  EXPECT_THAT(Refused(1), HasSubstr("names slot 8 of its shared queue"));
}

TEST_F(SharedReceiveQueueTest, shouldRefuseAReceiveOfAQueuePairThatHasNeither) {
  driver_->queues[0].Add(shared_.completing(0));
  ASSERT_TRUE(shared_.Complete(0, 0));
  EXPECT_THAT(Refused(0), HasSubstr("a receive of queue pair 257, which has no receive queue"));
}

// The predecessor was killed between the two records, and had told the completion.
TEST_F(SharedReceiveQueueTest, shouldNotFreeWhatWasNotConsumed) {
  ASSERT_EQ(driver_->Post(100, kSharedSlots - 1), kSharedSlots - 1);
  ASSERT_TRUE(shared_.Complete(2, shared_.TakeAll()[4]));
  driver_->receives.BeginFree(4, kCompletionQueue + 1, 1);
  Restart();
  driver_->TakeOver();
  EXPECT_EQ(driver_->Post(200, 1), 0u);
  EXPECT_THAT(driver_->Poll(1), ElementsAre(104));
  EXPECT_EQ(driver_->Post(200, 2), 1u);
}

TEST_F(SharedReceiveQueueTest, shouldFreeWhatWasConsumed) {
  ASSERT_EQ(driver_->Post(100, kSharedSlots - 1), kSharedSlots - 1);
  ASSERT_TRUE(shared_.Complete(2, shared_.TakeAll()[4]));
  driver_->receives.BeginFree(4, kCompletionQueue + 1, 1);
  StoreRecord(&shared_.queue(1).consumed, 1);
  for (int heir = 0; heir < 3; ++heir) {
    Restart();
    driver_->TakeOver();
  }
  EXPECT_THAT(driver_->Poll(1), IsEmpty());
  EXPECT_EQ(driver_->Post(200, 2), 1u);
}

// The number that another queue has consumed means nothing.
TEST_F(SharedReceiveQueueTest, shouldBeSettledByTheQueueThatFrees) {
  ASSERT_EQ(driver_->Post(100, 2), 2u);
  ASSERT_EQ(shared_.TakeAll().size(), 2u);
  driver_->receives.BeginFree(1, kCompletionQueue + 1, 0x12'3456);
  driver_->receives.Settle(kCompletionQueue, 0x12'3456);
  EXPECT_EQ(UnpackFreed(*shared_.memory().freed).freed, 0);
  EXPECT_TRUE(UnpackFreed(*shared_.memory().freed).pending);
  driver_->receives.Settle(kCompletionQueue + 1, 0x12'3456);
  EXPECT_EQ(*shared_.memory().freed, 1u);
}

// The queue pair was removed with its completions before the heir took over.
TEST_F(SharedReceiveQueueTest, shouldFreeASlotThatNobodyCompletes) {
  ASSERT_EQ(driver_->Post(100, kSharedSlots - 1), kSharedSlots - 1);
  ASSERT_EQ(shared_.TakeAll().size(), kSharedSlots - 1);
  driver_->receives.BeginFree(2, kCompletionQueue + 1, 1);
  Restart();
  driver_->queues[1].Remove(kQueuePair + 2);
  driver_->TakeOver();
  EXPECT_EQ(driver_->Post(200, 2), 1u);
}

TEST_F(SharedReceiveQueueTest, shouldArmItsLimitByACommand) {
  EXPECT_TRUE(driver_->receives.ArmLimit(3).ok());
  EXPECT_EQ(commands_.armed, std::make_pair(kSharedQueue, 3u));
  PlainCommands plain;
  SharedReceiveQueue without(shared_.memory(), kSharedQueue, &plain);
  EXPECT_TRUE(absl::IsUnimplemented(without.ArmLimit(3)));
}

TEST(FreedWordTest, shouldKeepItsPlaces) {
  const FreedWord word = {0x1234, 0x5678, 0xabcdef, true};
  EXPECT_EQ(Pack(word), 0x80ab'cdef'5678'1234u);
  const FreedWord again = UnpackFreed(Pack(word));
  EXPECT_EQ(again.freed, word.freed);
  EXPECT_EQ(again.consumed, word.consumed);
  EXPECT_EQ(again.completion_queue, word.completion_queue);
  EXPECT_TRUE(again.pending);
  EXPECT_EQ(Pack(FreedWord{.freed = 9}), 9u);
}

}  // namespace
}  // namespace baton::verbs::mlx5
