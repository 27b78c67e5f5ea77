// A device refuses nonsense that a client writes into its queue.
#include "lib/verbs/mlx5/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace baton::verbs::mlx5
