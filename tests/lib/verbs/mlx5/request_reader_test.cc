// A device refuses nonsense that a client writes into its queue, shared or not.
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/verbs/mlx5/request_reader.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"
#include "tests/lib/verbs/mlx5/shared_queue.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RequestReaderTest : public ::testing::Test {
 protected:
  RequestReaderTest() : memory_(QueueMemory::Map(), &QueueMemory::Unmap) {
    SendQueue queue(memory_->send_queue(), kQueuePair, {3, 100}, &doorbell_);
    const ScatterGather sge = {0x1000, 8, 5};
    SendRequest request;
    request.opcode = Opcode::kFetchAndAdd;
    request.sges = {&sge, 1};
    size_t posted = 0;
    EXPECT_TRUE(queue.Post({&request, 1}, &posted).ok());
  }

  std::string Refused(uint16_t counter = 0, uint16_t queued = 1) const {
    FoundSend found;
    const absl::Status status = ReadSend(memory_->found_sends(), counter, queued, {}, &found);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  mlx5_wqe_ctrl_seg& control() { return *reinterpret_cast<mlx5_wqe_ctrl_seg*>(memory_->sends); }

  const std::unique_ptr<QueueMemory, void (*)(QueueMemory*)> memory_;
  RememberingDoorbell doorbell_;
};

TEST_F(RequestReaderTest, shouldRefuseARequestOfAnotherPlaceOrQueuePair) {
  EXPECT_THAT(Refused(kSendSlots, kSendSlots + 1), HasSubstr("at counter 16 says 0"));
  control().qpn_ds = htobe32((kQueuePair + 1) << 8 | 4);
  EXPECT_THAT(Refused(), HasSubstr("a request of queue pair 257 names 258"));
}

TEST_F(RequestReaderTest, shouldRefuseWhatIsNotQueued) {
  EXPECT_THAT(Refused(0, 0), HasSubstr("a request of 4 segments where 0 slots are queued"));
  control().qpn_ds = htobe32(kQueuePair << 8 | 5);
  EXPECT_THAT(Refused(), HasSubstr("a request of 5 segments where 1 slots are queued"));
  control().qpn_ds = htobe32(kQueuePair << 8);
  EXPECT_THAT(Refused(), HasSubstr("a request of 0 segments"));
  EXPECT_THAT(Refused(0, kSendSlots + 1), HasSubstr("the record is 17 slots ahead, of 16"));
}

TEST_F(RequestReaderTest, shouldRefuseWhatItsOpcodeDoesNotHave) {
  control().qpn_ds = htobe32(kQueuePair << 8 | 2);
  EXPECT_THAT(Refused(), HasSubstr("a request of 2 segments, fewer than its opcode has"));
  control().opmod_idx_opcode = htobe32(MLX5_OPCODE_UMR);
  EXPECT_THAT(Refused(), HasSubstr("opcode 37"));
}

TEST_F(RequestReaderTest, shouldRefuseInlineDataThatIsLongerThanItsRequest) {
  control().opmod_idx_opcode = htobe32(MLX5_OPCODE_SEND);
  control().qpn_ds = htobe32(kQueuePair << 8 | 2);
  const __be32 header = htobe32(13 | kInlineSegment);
  std::memcpy(memory_->sends + kSegmentBytes, &header, sizeof(header));
  EXPECT_THAT(Refused(), HasSubstr("inline data of 13 bytes, and room for 12"));
}

// A device that took it would store an answer of 8 bytes in a buffer of any length.
TEST_F(RequestReaderTest, shouldRefuseInlineDataOfWhatIsAnswered) {
  const __be32 header = htobe32(16 | kInlineSegment);
  std::memcpy(memory_->sends + 3 * kSegmentBytes, &header, sizeof(header));
  control().qpn_ds = htobe32(kQueuePair << 8 | 8);
  EXPECT_THAT(Refused(0, 2), HasSubstr("inline data where an answer is to be stored"));
  control().opmod_idx_opcode = htobe32(MLX5_OPCODE_RDMA_READ);
  std::memcpy(memory_->sends + 2 * kSegmentBytes, &header, sizeof(header));
  EXPECT_THAT(Refused(0, 2), HasSubstr("inline data where an answer is to be stored"));
}

// Nothing that is there leads a device out of its own memory; sanitizers look.
TEST_F(RequestReaderTest, shouldBearAnything) {
  constexpr int kTries = 200'000;
  std::mt19937 random(20261123);
  int taken = 0;
  for (int i = 0; i < kTries; ++i) {
    for (uint8_t& byte : memory_->sends) {
      if (random() % 16 == 0) byte = static_cast<uint8_t>(random());
    }
    const auto counter = static_cast<uint16_t>(random());
    const uint32_t slot = counter % kSendSlots;
    auto* const request =
        reinterpret_cast<mlx5_wqe_ctrl_seg*>(memory_->sends + size_t{slot} * kSlotBytes);
    request->opmod_idx_opcode = htobe32(uint32_t{counter} << 8 | random() % 0x14);
    request->qpn_ds = htobe32(kQueuePair << 8 | random() % 64);
    FoundSend found;
    const auto queued = static_cast<uint16_t>(counter + random() % (kSendSlots + 2));
    if (!ReadSend(memory_->found_sends(), counter, queued, {}, &found).ok()) continue;
    ++taken;
    ASSERT_LE(found.sge_count, kMaxSegments);
    ASSERT_LE(found.inline_bytes, found.bytes.size());
    ASSERT_LE(found.slots, kSendSlots);
  }
  EXPECT_GT(taken, kTries / 100);
}

class SharedReceiveReaderTest : public ::testing::Test {
 protected:
  void Record(uint32_t posted) { StoreRecord(shared_.memory().record, posted); }
  void Link(uint32_t slot, uint16_t next) {
    const __be16 index = htobe16(next);
    std::memcpy(shared_.memory().slots + size_t{slot} * kSharedLayout.slot_bytes +
                    offsetof(mlx5_wqe_srq_next_seg, next_wqe_index),
                &index, sizeof(index));
  }
  std::string Refused() {
    const absl::Status status = shared_.Take().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  SharedQueue shared_;
};

TEST_F(SharedReceiveReaderTest, shouldFollowTheList) {
  Link(0, 5);
  Link(5, 2);
  Link(2, 7);
  Link(7, 1);
  Record(2);
  EXPECT_THAT(shared_.TakeAll(), ElementsAre(0, 5));
  EXPECT_THAT(shared_.TakeAll(), IsEmpty());
  Record(4);
  EXPECT_THAT(shared_.TakeAll(), ElementsAre(2, 7));
}

TEST_F(SharedReceiveReaderTest, shouldTellHowManyWait) {
  SharedReceiveReader reader(shared_.found());
  EXPECT_EQ(reader.Waiting(), 0u);
  Record(3);
  EXPECT_EQ(reader.Waiting(), 3u);
  ASSERT_TRUE(reader.Take(absl::MakeSpan(shared_.buffers)).ok());
  EXPECT_EQ(reader.Waiting(), 2u);
  Record(kSharedSlots + 1);
  EXPECT_EQ(reader.Waiting(), 0u);
  Record(3);
  EXPECT_TRUE(absl::IsInvalidArgument(reader.Take(absl::MakeSpan(shared_.buffers)).status()));
}

TEST_F(SharedReceiveReaderTest, shouldRefuseARecordThatIsTooFarAhead) {
  Record(kSharedSlots);
  EXPECT_THAT(Refused(), HasSubstr("the record is 8 receives ahead, of 7 at most"));
  Record(1);  // for good
  EXPECT_THAT(Refused(), HasSubstr("the record is 8 receives ahead"));
}

TEST_F(SharedReceiveReaderTest, shouldRefuseARecordThatGoesBack) {
  Record(2);
  ASSERT_EQ(shared_.TakeAll().size(), 2u);
  Record(1);
  EXPECT_THAT(Refused(), HasSubstr("the record is 65535 receives ahead"));
}

// The receive that names it is whole, and a list that goes no further does no harm.
TEST_F(SharedReceiveReaderTest, shouldRefuseASlotBehindTheQueue) {
  Link(0, kSharedSlots);
  Record(1);
  EXPECT_THAT(shared_.TakeAll(), ElementsAre(0));
  EXPECT_THAT(shared_.TakeAll(), IsEmpty());
  Record(2);
  EXPECT_THAT(Refused(), HasSubstr("receive 1 is in slot 8 of 8"));
  Link(0, 1);  // too late
  EXPECT_THAT(Refused(), HasSubstr("receive 1 is in slot 8 of 8"));
}

TEST_F(SharedReceiveReaderTest, shouldGoAroundACircleNoFurtherThanTheRecord) {
  Link(0, 1);
  Link(1, 0);
  Record(kSharedSlots - 1);
  EXPECT_THAT(shared_.TakeAll(), ElementsAre(0, 1, 0, 1, 0, 1, 0));
  Record(kSharedSlots);
  EXPECT_THAT(shared_.TakeAll(), ElementsAre(1));
}

TEST_F(SharedReceiveReaderTest, shouldTakeNoMoreBuffersThanItsSlotHas) {
  std::memset(shared_.memory().slots, 0x11, kSharedLayout.slot_bytes);
  Record(1);
  const auto taken = shared_.Take();
  ASSERT_TRUE(taken.ok() && taken->has_value());
  EXPECT_EQ((*taken)->sge_count, kSharedBuffers);
  EXPECT_EQ(shared_.buffers[2].lkey, 0x11111111u);
}

// Nothing that is there leads a device out of its own memory; sanitizers look.
TEST_F(SharedReceiveReaderTest, shouldBearAnything) {
  constexpr int kTries = 20'000;
  std::mt19937 random(20261124);
  // Memory of exactly this length, so that sanitizers see what is behind it.
  const auto slots = std::make_unique<uint8_t[]>(kSharedSlots * kSharedLayout.slot_bytes);
  std::array<ScatterGather, kSharedBuffers> buffers;
  int all = 0;
  int failed = 0;
  for (int i = 0; i < kTries; ++i) {
    __be32 record = 0;
    SharedReceiveReader reader({slots.get(), &record, kSharedSlots, kSharedLayout.slot_bytes});
    for (uint32_t slot = 0; slot < kSharedSlots; ++slot) {
      uint8_t* const at = slots.get() + slot * kSharedLayout.slot_bytes;
      for (uint32_t byte = 0; byte < kSharedLayout.slot_bytes; ++byte) {
        at[byte] = static_cast<uint8_t>(random());
      }
      if (random() % 8 != 0) at[2] = 0;
      if (random() % 8 != 0) at[3] %= kSharedSlots;
    }
    for (uint32_t round = 0; round < 4; ++round) {
      record = htobe32(random() % 8 == 0 ? static_cast<uint32_t>(random())
                                         : be32toh(record) + static_cast<uint32_t>(random()) % 4);
      uint32_t count = 0;
      auto taken = reader.Take(absl::MakeSpan(buffers));
      for (; taken.ok() && taken->has_value(); taken = reader.Take(absl::MakeSpan(buffers))) {
        ASSERT_LT((*taken)->slot, kSharedSlots);
        ASSERT_LE((*taken)->sge_count, kSharedBuffers);
        ASSERT_LT(++count, kSharedSlots);
      }
      all += static_cast<int>(count);
      failed += taken.ok() ? 0 : 1;
    }
  }
  EXPECT_GT(all, kTries / 2);
  EXPECT_GT(failed, kTries / 100);
}

}  // namespace
}  // namespace baton::verbs::mlx5
