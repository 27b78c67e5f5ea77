// The bytes of sends. Those that are written out here are what libmlx5 of rdma-core 44 wrote for
// the same requests.
#include "lib/verbs/mlx5/send_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SendQueueLimits kLimits = {3, 100};
constexpr char kText[] = "abcdefghijklmnopqrstuvwxyz0123456789";

class SendQueueTest : public ::testing::Test {
 protected:
  SendQueueTest() : memory_(QueueMemory::Map(), &QueueMemory::Unmap) { Restart(); }

  // Another driver of the same queue.
  void Restart() {
    queue_ = std::make_unique<SendQueue>(memory_->send_queue(), kQueuePair, kLimits, &doorbell_);
  }

  absl::Status Post(const SendRequest& request) {
    size_t posted = 0;
    return queue_->Post({&request, 1}, &posted);
  }

  // The request that begins at `counter`, in hexadecimal, without what follows its last segment.
  std::string BytesAt(uint16_t counter) const {
    const uint8_t* const begin = memory_->sends + size_t{counter % kSendSlots} * kSlotBytes;
    const size_t segments = begin[7] & kMaxSegments;
    return absl::BytesToHexString({reinterpret_cast<const char*>(begin), segments * kSegmentBytes});
  }

  // All that was posted has completed.
  void Complete() { memory_->cursors.sent = queue_->queued(); }

  const std::unique_ptr<QueueMemory, void (*)(QueueMemory*)> memory_;
  RememberingDoorbell doorbell_;
  std::unique_ptr<SendQueue> queue_;
};

constexpr ScatterGather kSendBuffers[] = {{0x1122334455667788, 0x10203, 0xa1b2c3d4},
                                          {0x99aabbccddeeff00, 0x40, 0x0badf00d},
                                          {0x1000, 0, 0x77}};
const ScatterGather kInline[] = {{reinterpret_cast<uintptr_t>(kText), 30, 0},
                                 {reinterpret_cast<uintptr_t>(kText), 1, 0},
                                 {reinterpret_cast<uintptr_t>(kText), 36, 0}};
constexpr char kFirst[] = "00010203a1b2c3d41122334455667788";
constexpr char kSecond[] = "000000400badf00d99aabbccddeeff00";
constexpr char kRemote[] = "0102030405060708deadbeef00000000";

SendRequest Request(Opcode opcode, size_t buffers) {
  SendRequest request;
  request.wr_id = 99;
  request.opcode = opcode;
  request.immediate = 0x01020304;
  request.invalidate_rkey = 0x0f1e2d3c;
  request.remote_address = 0x0102030405060708;
  request.rkey = 0xdeadbeef;
  request.sges = {kSendBuffers, buffers};
  return request;
}

TEST_F(SendQueueTest, shouldSayWhatIsQueuedLast) {
  EXPECT_EQ(queue_->LastQueued().value(), std::nullopt);
  std::vector<SendRequest> chain(3, Request(Opcode::kWrite, 0));
  for (uint64_t wr_id = 1; wr_id < 200; ++wr_id) {
    for (size_t i = 0; i < chain.size(); ++i) {
      chain[i].wr_id = 1000 * i + wr_id;
      // A request takes one slot or two.
      chain[i].inline_data = (wr_id + i) % 3 != 0;
      chain[i].sges = {&kInline[(wr_id + i) % 3], 1};
    }
    size_t posted = 0;
    ASSERT_TRUE(queue_->Post(chain, &posted).ok());
    Restart();
    ASSERT_EQ(queue_->LastQueued().value(), 2000 + wr_id);
    Complete();
    ASSERT_EQ(queue_->LastQueued().value(), std::nullopt);
  }
}

// Other processes can write the cursors and the notes.
TEST_F(SendQueueTest, shouldRefuseToSayWhatMakesNoSense) {
  const auto is_refused = [this] {
    return queue_->LastQueued().status().code() == absl::StatusCode::kDataLoss;
  };
  ASSERT_TRUE(Post(Request(Opcode::kWrite, 1)).ok());
  ASSERT_TRUE(Post(Request(Opcode::kWrite, 1)).ok());
  for (const uint32_t end : {0u, 3u, 0x8001u}) {
    memory_->notes[0].end = end;
    EXPECT_TRUE(is_refused()) << end;
  }
  memory_->notes[0].end = 2;  // passes over the second, and that is what its end says
  EXPECT_FALSE(is_refused());
  memory_->cursors.sent = 3;
  EXPECT_TRUE(is_refused());
  memory_->cursors.sent = static_cast<uint16_t>(2 - kSendSlots - 1);
  EXPECT_TRUE(is_refused());
}

TEST_F(SendQueueTest, shouldWriteWhatLibmlx5Writes) {
  SendRequest fenced = Request(Opcode::kSend, 2);
  fenced.fence = fenced.solicited = true;
  const ScatterGather word = {0x1122334455667788, 8, 0xa1b2c3d4};
  SendRequest swap = Request(Opcode::kCompareAndSwap, 0);
  swap.sges = {&word, 1};
  swap.compare_add = 0x1111111122222222;
  swap.swap = 0x3333333344444444;
  SendRequest add = swap;
  add.opcode = Opcode::kFetchAndAdd;
  const ScatterGather text[] = {{reinterpret_cast<uint64_t>(kText), 26, 0},
                                {reinterpret_cast<uint64_t>(kText) + 26, 10, 0}};
  SendRequest inlined = Request(Opcode::kSend, 0);
  inlined.inline_data = true;
  inlined.sges = {text, 1};
  SendRequest written = Request(Opcode::kWrite, 0);
  written.inline_data = true;
  written.sges = text;

  const struct {
    SendRequest request;
    std::string bytes;
  } cases[] = {
      {Request(Opcode::kSend, 1), absl::StrCat("0000000a000101020000000800000000", kFirst)},
      {fenced, absl::StrCat("0000010a000101030000008a00000000", kFirst, kSecond)},
      {Request(Opcode::kSendWithImmediate, 1),
       absl::StrCat("0000020b000101020000000801020304", kFirst)},
      {Request(Opcode::kSendWithInvalidate, 1),
       absl::StrCat("0000030100010102000000080f1e2d3c", kFirst)},
      {Request(Opcode::kWrite, 3),
       absl::StrCat("00000408000101040000000800000000", kRemote, kFirst, kSecond)},
      {Request(Opcode::kWriteWithImmediate, 1),
       absl::StrCat("00000509000101030000000801020304", kRemote, kFirst)},
      {Request(Opcode::kRead, 2),
       absl::StrCat("00000610000101040000000800000000", kRemote, kFirst, kSecond)},
      {swap, absl::StrCat("00000711000101040000000800000000", kRemote,
                          "33333333444444441111111122222222", "00000008a1b2c3d41122334455667788")},
      {add, absl::StrCat("00000812000101040000000800000000", kRemote,
                         "11111111222222220000000000000000", "00000008a1b2c3d41122334455667788")},
      {inlined, absl::StrCat("0000090a000101030000000800000000", "8000001a6162636465666768696a6b6c",
                             "6d6e6f707172737475767778797a0000")},
      {written,
       absl::StrCat("00000a08000101050000000800000000", kRemote, "800000246162636465666768696a6b6c",
                    "6d6e6f707172737475767778797a3031", "32333435363738390000000000000000")},
      {Request(Opcode::kWrite, 0), absl::StrCat("00000c08000101020000000800000000", kRemote)},
  };
  for (const auto& [request, bytes] : cases) {
    const uint16_t counter = queue_->queued();
    ASSERT_TRUE(Post(request).ok());
    EXPECT_EQ(BytesAt(counter), bytes) << OpcodeName(request.opcode);
  }
  EXPECT_EQ(queue_->queued(), 13);
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(memory_->records), 8}),
            "000000000000000d");
}

TEST_F(SendQueueTest, shouldRingOnceForAllThatArePostedWithTheLastOfThem) {
  const SendRequest requests[] = {Request(Opcode::kWrite, 1), Request(Opcode::kSend, 1)};
  size_t posted = 0;
  ASSERT_TRUE(queue_->Post(requests, &posted).ok());
  EXPECT_EQ(posted, 2u);
  uint64_t last;
  std::memcpy(&last, memory_->sends + kSlotBytes, sizeof(last));
  EXPECT_THAT(doorbell_.rung, ElementsAre(last));
}

TEST_F(SendQueueTest, shouldRingAgainWithTheCounterAndAnEmptyOpcode) {
  ASSERT_TRUE(Post(Request(Opcode::kSend, 1)).ok());
  Restart();
  queue_->RingAgain();
  ASSERT_EQ(doorbell_.rung.size(), 2u);
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(&doorbell_.rung.back()), 8}),
            "0000010000010100");
}

// Requests that lie around the end of the queue are among them.
TEST_F(SendQueueTest, shouldBeReadAsItWasWritten) {
  constexpr int kRequests = 20'000;
  std::mt19937 random(20261123);
  const auto under = [&random](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  for (int i = 0; i < kRequests; ++i) {
    SendRequest request = Request(static_cast<Opcode>(under(kOpcodeCount)), 0);
    request.wr_id = random();
    request.fence = under(2) != 0;
    request.solicited = under(2) != 0;
    request.remote_address = random();
    request.compare_add = random();
    request.swap = random();
    std::vector<ScatterGather> sges(under(kLimits.scatter_gather + 1));
    for (ScatterGather& sge : sges)
      sge = {random(), 1 + under(1000), static_cast<uint32_t>(random())};
    std::string text(under(kLimits.inline_bytes + 1), '\0');
    for (char& letter : text) letter = static_cast<char>(random());
    request.inline_data = !IsAnswered(request.opcode) && under(2) != 0;
    if (request.inline_data)
      sges = {{reinterpret_cast<uint64_t>(text.data()), static_cast<uint32_t>(text.size()), 0}};
    if (IsAtomic(request.opcode)) sges = {{random(), 8, static_cast<uint32_t>(random())}};
    request.sges = sges;

    const uint16_t counter = queue_->queued();
    ASSERT_TRUE(Post(request).ok());
    FoundSend found;
    ASSERT_TRUE(ReadSend(memory_->found_sends(), counter, queue_->queued(), {}, &found).ok());
    EXPECT_EQ(static_cast<uint16_t>(counter + found.slots), queue_->queued());
    EXPECT_EQ(memory_->notes[counter % kSendSlots].wr_id, request.wr_id);
    EXPECT_EQ(memory_->notes[counter % kSendSlots].end, queue_->queued());
    EXPECT_EQ(found.opcode, request.opcode);
    EXPECT_EQ(found.fence, request.fence);
    EXPECT_EQ(found.solicited, request.solicited);
    EXPECT_TRUE(found.signalled);
    if (HasRemoteAddress(request.opcode)) {
      EXPECT_EQ(found.remote_address, request.remote_address);
      EXPECT_EQ(found.rkey, request.rkey);
    }
    if (IsAtomic(request.opcode)) EXPECT_EQ(found.compare_add, request.compare_add);
    if (request.opcode == Opcode::kCompareAndSwap) EXPECT_EQ(found.swap, request.swap);
    if (request.inline_data) {
      EXPECT_EQ(found.sge_count, 0u);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(found.bytes.data()), found.inline_bytes),
                text);
    } else {
      ASSERT_EQ(found.sge_count, sges.size());
      EXPECT_TRUE(std::equal(sges.begin(), sges.end(), found.sges.begin(),
                             [](const ScatterGather& one, const ScatterGather& other) {
                               return one.address == other.address && one.length == other.length &&
                                      one.lkey == other.lkey;
                             }));
    }
    Complete();
  }
}

TEST_F(SendQueueTest, shouldTakeWhatItHasRoomForAndRefuseTheRest) {
  const std::vector<SendRequest> requests(kSendSlots + 3, Request(Opcode::kSend, 1));
  size_t posted = 0;
  const absl::Status full = queue_->Post(requests, &posted);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(posted, kSendSlots);
  EXPECT_EQ(doorbell_.rung.size(), 1u);
  memory_->cursors.sent = 1;
  EXPECT_TRUE(Post(Request(Opcode::kSend, 1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Post(Request(Opcode::kSend, 1))));
}

TEST_F(SendQueueTest, shouldRefuseWhatNoQueueTakes) {
  const ScatterGather four[4] = {};
  SendRequest request = Request(Opcode::kSend, 0);
  request.sges = four;
  EXPECT_THAT(std::string(Post(request).message()), HasSubstr("sges: 4, at most 3"));
  request = Request(Opcode::kFetchAndAdd, 1);
  EXPECT_THAT(std::string(Post(request).message()), HasSubstr("without one buffer of 8 bytes"));
  request = Request(static_cast<Opcode>(kOpcodeCount), 1);
  EXPECT_THAT(std::string(Post(request).message()), HasSubstr("unknown opcode 8"));
  request = Request(Opcode::kSend, 2);
  request.inline_data = true;
  EXPECT_TRUE(absl::IsInvalidArgument(Post(request)));
  EXPECT_EQ(queue_->queued(), 0);
  EXPECT_TRUE(doorbell_.rung.empty());
}

TEST(MostSlotsOfTest, shouldHaveRoomForEveryRequestWithinTheLimits) {
  EXPECT_EQ(MostSlotsOf({1, 0}), 1u);   // an atomic: four segments
  EXPECT_EQ(MostSlotsOf({3, 0}), 2u);   // five
  EXPECT_EQ(MostSlotsOf({1, 28}), 1u);  // 32 bytes with their header
  EXPECT_EQ(MostSlotsOf({1, 29}), 2u);
}

}  // namespace
}  // namespace baton::verbs::mlx5
