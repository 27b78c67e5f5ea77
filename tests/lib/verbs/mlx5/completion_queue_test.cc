#include "lib/verbs/mlx5/completion_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "lib/verbs/mlx5/format.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::HasSubstr;

class CompletionQueueTest : public ::testing::Test {
 protected:
  CompletionQueueTest()
      : memory_(QueueMemory::Map(), &QueueMemory::Unmap), writer_(memory_->found_completions()) {
    Restart();
  }

  // Another driver of the same queue.
  void Restart() {
    queue_ = std::make_unique<CompletionQueue>(memory_->completion_queue(), kCompletionQueue,
                                               &doorbell_);
    queue_->Add(memory_->completing());
    queue_->TakeOver();
  }

  // The device has executed the send in slot `counter`, which is one slot long.
  bool Sent(uint16_t counter, uint8_t code = MLX5_OPCODE_SEND) {
    memory_->notes[counter % kSendSlots] = {1000u + counter, static_cast<uint16_t>(counter + 1), 0};
    Executed executed;
    executed.code = code;
    executed.counter = counter;
    executed.qp_number = kQueuePair;
    executed.bytes = 40;
    return writer_.Write(executed);
  }
  bool Received(uint8_t kind, uint32_t immediate = 0) {
    Executed executed;
    executed.kind = kind;
    executed.qp_number = kQueuePair;
    executed.bytes = 50;
    executed.immediate = immediate;
    return writer_.Write(executed);
  }

  Completion One() {
    Completion completion;
    const absl::StatusOr<int> taken = queue_->Take({&completion, 1});
    EXPECT_TRUE(taken.ok() && *taken == 1) << taken.status();
    return completion;
  }
  int Count() {
    std::array<Completion, kEntries> completions;
    const absl::StatusOr<int> taken = queue_->Take(absl::MakeSpan(completions));
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.value_or(-1);
  }

  uint32_t Sequence() const { return LoadRecord(&memory_->arm_record) >> kSequenceShift; }

  const std::unique_ptr<QueueMemory, void (*)(QueueMemory*)> memory_;
  CompletionWriter writer_;
  RememberingDoorbell doorbell_;
  std::unique_ptr<CompletionQueue> queue_;
};

TEST_F(CompletionQueueTest, shouldTellOfSends) {
  const struct {
    uint8_t code;
    CompletionOpcode opcode;
    uint32_t bytes;
  } cases[] = {{MLX5_OPCODE_SEND, CompletionOpcode::kSend, 40},
               {MLX5_OPCODE_SEND_INVAL, CompletionOpcode::kSend, 40},
               {MLX5_OPCODE_RDMA_WRITE_IMM, CompletionOpcode::kWrite, 40},
               {MLX5_OPCODE_RDMA_READ, CompletionOpcode::kRead, 40},
               {MLX5_OPCODE_ATOMIC_CS, CompletionOpcode::kCompareAndSwap, 8},
               {MLX5_OPCODE_ATOMIC_FA, CompletionOpcode::kFetchAndAdd, 8}};
  uint16_t counter = 0;
  for (const auto& [code, opcode, bytes] : cases) {
    ASSERT_TRUE(Sent(counter, code));
    const Completion completion = One();
    EXPECT_EQ(completion.wr_id, 1000u + counter);
    EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
    EXPECT_EQ(completion.opcode, opcode);
    EXPECT_EQ(completion.byte_len, bytes);
    EXPECT_EQ(completion.qp_number, kQueuePair);
    EXPECT_EQ(memory_->cursors.sent, ++counter);
  }
  EXPECT_EQ(Count(), 0);
}

TEST_F(CompletionQueueTest, shouldTellOfReceives) {
  memory_->wr_ids[0] = 70;
  memory_->wr_ids[1] = 71;
  memory_->wr_ids[2] = 72;
  memory_->wr_ids[3] = 73;
  ASSERT_TRUE(Received(MLX5_CQE_RESP_SEND));
  ASSERT_TRUE(Received(MLX5_CQE_RESP_SEND_IMM, 5));
  ASSERT_TRUE(Received(MLX5_CQE_RESP_WR_IMM, 6));
  ASSERT_TRUE(Received(MLX5_CQE_RESP_SEND_INV, 7));
  Completion completion = One();
  EXPECT_EQ(completion.wr_id, 70u);
  EXPECT_EQ(completion.opcode, CompletionOpcode::kReceive);
  EXPECT_EQ(completion.byte_len, 50u);
  EXPECT_FALSE(completion.has_immediate || completion.has_invalidate);
  completion = One();
  EXPECT_EQ(completion.wr_id, 71u);
  EXPECT_TRUE(completion.has_immediate);
  EXPECT_EQ(completion.immediate, 5u);
  completion = One();
  EXPECT_EQ(completion.opcode, CompletionOpcode::kReceiveWithImmediate);
  EXPECT_EQ(completion.immediate, 6u);
  completion = One();
  EXPECT_EQ(completion.wr_id, 73u);
  EXPECT_TRUE(completion.has_invalidate);
  EXPECT_EQ(completion.immediate, 7u);
  EXPECT_EQ(memory_->cursors.received, 4);
}

TEST_F(CompletionQueueTest, shouldTellWhatWentWrong) {
  for (int status = 1; status <= static_cast<int>(CompletionStatus::kRnrRetryExceeded); ++status) {
    Executed executed;
    executed.kind = status % 2 == 0 ? MLX5_CQE_REQ : MLX5_CQE_RESP_SEND;
    executed.status = static_cast<CompletionStatus>(status);
    executed.vendor_error = 0x31;
    executed.qp_number = kQueuePair;
    ASSERT_TRUE(writer_.Write(executed));
    const Completion completion = One();
    EXPECT_EQ(completion.status, executed.status);
    EXPECT_EQ(completion.vendor_error, 0x31u);
    EXPECT_EQ(completion.qp_number, kQueuePair);
  }
  EXPECT_EQ(StatusOf(0x77), CompletionStatus::kGeneralError);
}

TEST_F(CompletionQueueTest, shouldGiveEachOnceHoweverOftenTheQueueGoesAround) {
  uint16_t sent = 0;
  for (uint32_t round = 0; round < 4 * kEntries; ++round) {
    const uint32_t count = round % kEntries + 1;
    const uint16_t first = sent;
    for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(Sent(sent++));
    std::array<Completion, kEntries> completions;
    const absl::StatusOr<int> taken = queue_->Take(absl::MakeSpan(completions));
    ASSERT_TRUE(taken.ok() && *taken == static_cast<int>(count));
    for (uint32_t i = 0; i < count; ++i) EXPECT_EQ(completions[i].wr_id, 1000u + first + i);
    EXPECT_EQ(Count(), 0);
  }
}

TEST_F(CompletionQueueTest, shouldTakeTheIndexAroundItsEnd) {
  // 24 bits, of a queue that is nearly there.
  for (uint32_t i = 0; i < (1u << 24) + kEntries; ++i) {
    ASSERT_TRUE(Sent(static_cast<uint16_t>(i)));
    ASSERT_EQ(One().wr_id, 1000u + static_cast<uint16_t>(i));
  }
}

TEST_F(CompletionQueueTest, shouldBeOverrunForGood) {
  for (uint32_t i = 0; i < kEntries; ++i) ASSERT_TRUE(Sent(static_cast<uint16_t>(i)));
  EXPECT_FALSE(Sent(kEntries));
  EXPECT_EQ(Count(), static_cast<int>(kEntries));
  EXPECT_FALSE(Sent(kEntries));
}

TEST_F(CompletionQueueTest, shouldRefuseAnEntryThatMakesNoSense) {
  ASSERT_TRUE(Sent(0));
  Executed executed;
  executed.qp_number = kQueuePair + 1;
  ASSERT_TRUE(writer_.Write(executed));
  EXPECT_EQ(Count(), 1);
  std::array<Completion, kEntries> completions;
  const absl::Status status = queue_->Take(absl::MakeSpan(completions)).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("names queue pair 258"));
}

// Killed between the consumer index and the cursor.
TEST_F(CompletionQueueTest, shouldBringACursorUpToDate) {
  ASSERT_TRUE(Sent(0));
  ASSERT_TRUE(Received(MLX5_CQE_RESP_SEND));
  One();
  memory_->cursors.sent = 0;
  Restart();
  EXPECT_EQ(memory_->cursors.sent, 1);
  One();
  memory_->cursors.received = 0;
  Restart();
  EXPECT_EQ(memory_->cursors.received, 1);
}

TEST_F(CompletionQueueTest, shouldLeaveCursorsAloneThatWereReset) {
  ASSERT_TRUE(Sent(0));
  One();
  memory_->cursors = {1, 0, 0};
  Restart();
  EXPECT_EQ(memory_->cursors.sent, 0);
  // Killed before the consumer index: the same completion comes again.
  memory_->cursors.use = 0;
  StoreRecord(&memory_->consumed, 0);
  Restart();
  EXPECT_EQ(memory_->cursors.sent, 0);
  EXPECT_EQ(One().wr_id, 1000u);
}

std::string Bytes(uint64_t value) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(&value), sizeof(value)});
}

TEST_F(CompletionQueueTest, shouldArmAsLibmlx5Does) {
  queue_->RequestNotification();
  EXPECT_EQ(LoadRecord(&memory_->arm_record), 0u);
  ASSERT_TRUE(Sent(0));
  One();
  queue_->RequestNotification();
  EXPECT_EQ(LoadRecord(&memory_->arm_record), 0x1000'0001u);
  ASSERT_EQ(doorbell_.armed.size(), 2u);
  EXPECT_EQ(Bytes(doorbell_.armed[0]), "0000000000000202");
  EXPECT_EQ(Bytes(doorbell_.armed[1]), "1000000100000202");
}

TEST_F(CompletionQueueTest, shouldCountEventsAndNotArms) {
  for (uint16_t event = 0; event < 9; ++event) {
    queue_->RequestNotification();
    queue_->RequestNotification();
    EXPECT_EQ(Sequence(), event % 4u);
    ASSERT_TRUE(Sent(event));
    if (event % 2 == 0) Restart();  // an heir, which knows of no event
    One();
  }
}

// The device has made the event when the driver asks again before it polls.
TEST_F(CompletionQueueTest, shouldCountTheEventOfWhatItHasNotPolled) {
  queue_->RequestNotification();
  ASSERT_TRUE(Sent(0));
  queue_->RequestNotification();
  EXPECT_EQ(Sequence(), 1u);
  One();
  queue_->RequestNotification();
  EXPECT_EQ(Sequence(), 2u);
}

TEST_F(CompletionQueueTest, shouldNotUseUpASequenceThatWasNotRecorded) {
  memory_->arming = 1 | kArmed;  // killed before the record, which has 0
  ASSERT_TRUE(Sent(0));
  One();
  EXPECT_EQ(memory_->arming, 1u);
}

TEST(TakenWordTest, shouldKeepItsPlaces) {
  const TakenWord word = {0xabcdef, 0x1234, 0x7f, true, 0x5678};
  EXPECT_EQ(Pack(word), 0x5678'ff12'34ab'cdefu);
  const TakenWord again = Unpack(Pack(word));
  EXPECT_EQ(again.consumed, word.consumed);
  EXPECT_EQ(again.place, word.place);
  EXPECT_EQ(again.use, word.use);
  EXPECT_EQ(again.receive, word.receive);
  EXPECT_EQ(again.cursor, word.cursor);
}

// What is there when a queue pair is reset is of its former use, and what comes then is not.
TEST_F(CompletionQueueTest, shouldPassOverWhatWasThereAtAReset) {
  ASSERT_TRUE(Sent(5) && Received(MLX5_CQE_RESP_SEND));
  memory_->cursors = {1, 0, 0};
  ASSERT_TRUE(queue_->NoteReset(kQueuePair).ok());
  ASSERT_TRUE(Sent(0));
  EXPECT_EQ(One().wr_id, 1000u);
  EXPECT_EQ(memory_->cursors.sent, 1);
  EXPECT_EQ(memory_->cursors.received, 0);
  EXPECT_EQ(LoadRecord(&memory_->consumed), 3u);
  EXPECT_EQ(Count(), 0);
}

TEST_F(CompletionQueueTest, shouldPassOverWhatCompletesThereAlone) {
  CompletingQueuePair half = memory_->completing();
  half.sends_here = false;
  queue_->Add(half);
  ASSERT_TRUE(Sent(0) && Received(MLX5_CQE_RESP_SEND));
  memory_->cursors.sends_begin = 7;  // of another queue
  ASSERT_TRUE(queue_->NoteReset(kQueuePair).ok());
  EXPECT_EQ(One().opcode, CompletionOpcode::kSend);
  EXPECT_EQ(Count(), 0);
  EXPECT_EQ(memory_->cursors.received, 0);
  EXPECT_EQ(memory_->cursors.sends_begin, 7u);
}

// The driver was killed behind a completion of the former use: its heir passes the rest over, and
// takes no cursor from it.
TEST_F(CompletionQueueTest, shouldPassOverTheRestAfterAKill) {
  ASSERT_TRUE(Sent(5) && Sent(6) && Sent(7));
  EXPECT_EQ(One().wr_id, 1005u);
  memory_->cursors = {1, 0, 0};
  ASSERT_TRUE(queue_->NoteReset(kQueuePair).ok());
  StoreRecord(&memory_->consumed, 2);
  Restart();
  EXPECT_EQ(Count(), 0);
  EXPECT_EQ(memory_->cursors.sent, 0);
  EXPECT_EQ(LoadRecord(&memory_->consumed), 3u);
}

// An heir that takes over between the two halves of a reset finds nothing of the use.
TEST_F(CompletionQueueTest, shouldTakeNoCursorFromAUseThatIsAboutToEnd) {
  ASSERT_TRUE(Sent(0));
  EXPECT_EQ(Count(), 1);
  for (uint32_t use = 1; use < 3; ++use) {
    memory_->cursors = {use, 0, 0};  // without a completion
    ASSERT_TRUE(queue_->NoteReset(kQueuePair).ok());
    Restart();
    ASSERT_EQ(memory_->cursors.sent, 0) << "use " << use;
  }
}

// The low bits of the use come again.
TEST_F(CompletionQueueTest, shouldTakeNoCursorFromAUseLongAgo) {
  ASSERT_TRUE(Sent(0));
  EXPECT_EQ(Count(), 1);
  for (uint32_t use = 1; use <= 2 * (kUseMask + 1u); ++use) {
    ASSERT_TRUE(queue_->NoteReset(kQueuePair).ok());
    memory_->cursors.use = use;
    memory_->cursors.sent = memory_->cursors.received = 0;
    EXPECT_EQ(Count(), 0);
    Restart();
    ASSERT_EQ(memory_->cursors.sent, 0) << "use " << use;
  }
}

// The indices come round, and the queue pair has had no completion since its reset.
TEST_F(CompletionQueueTest, shouldForgetAResetThatItHasPassed) {
  ASSERT_TRUE(queue_->NoteReset(kQueuePair).ok());
  EXPECT_EQ(memory_->former, 1u);
  EXPECT_EQ(Count(), 0);
  EXPECT_EQ(memory_->former, 0u);
  EXPECT_EQ(memory_->cursors.sends_begin, 0u);
  EXPECT_EQ(memory_->cursors.receives_begin, 0u);
}

// One completion is taken at a time, so the note stays until the last of the former use is passed.
TEST_F(CompletionQueueTest, shouldKeepANoteWhileSomethingIsLeft) {
  CompletingQueuePair other = memory_->completing();
  QueueCursors cursors;
  other.number = kQueuePair + 1;
  other.place = 1;
  other.cursors = &cursors;
  queue_->Add(other);
  Executed executed;
  executed.code = MLX5_OPCODE_SEND;
  executed.qp_number = kQueuePair + 1;
  ASSERT_TRUE(writer_.Write(executed));
  ASSERT_TRUE(Sent(3));
  memory_->cursors = {1, 0, 0};
  ASSERT_TRUE(queue_->NoteReset(kQueuePair).ok());
  EXPECT_EQ(One().qp_number, kQueuePair + 1);
  EXPECT_EQ(memory_->former, 1u);
  EXPECT_EQ(Count(), 0);
  EXPECT_EQ(memory_->cursors.sent, 0);
  EXPECT_EQ(memory_->former, 0u);
}

}  // namespace
}  // namespace baton::verbs::mlx5
