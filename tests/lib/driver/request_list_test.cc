#include "lib/driver/request_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "lib/arena/arena.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TestShape;

constexpr uint32_t kLkey = 77;

TEST(CheckRequest, shouldAcceptEveryOpcodeAndTheEdgesOfTheBuffers) {
  arena::WorkRequest request = {};
  request.sge_count = 1;
  request.sges[0] = {4096 - 8, 8, 0};
  for (uint8_t opcode = 0; opcode < verbs::kOpcodeCount; ++opcode) {
    request.opcode = opcode;
    EXPECT_TRUE(CheckRequest(request, false, {4096}).ok());
  }
  request = {};
  EXPECT_TRUE(CheckRequest(request, false, {4096}).ok());
  EXPECT_TRUE(CheckRequest(request, true, {4096}).ok());
  request.sge_count = 1;
  request.sges[0] = {4096, 0, 0};
  EXPECT_TRUE(CheckRequest(request, true, {4096}).ok());
}

TEST(CheckRequest, shouldBoundTheLengthOfAMessage) {
  arena::WorkRequest request = {};
  request.sge_count = 2;
  request.sges[0] = {0, 1u << 30, 0};
  request.sges[1] = {0, 1u << 30, 0};
  EXPECT_TRUE(CheckRequest(request, false, {uint64_t{1} << 31}).ok());
  request.sges[1].length += 1;
  EXPECT_FALSE(CheckRequest(request, false, {uint64_t{1} << 31}).ok());
}

TEST(CheckRequest, shouldLookAtTheOnlyBufferInTheFirstLine) {
  arena::WorkRequest request = {};
  request.sge_count = 1;
  request.one_line = 1;
  request.only = {4096 - 8, 8, 0};
  request.sges[0] = {~uint64_t{0}, ~0u, 0};
  EXPECT_TRUE(CheckRequest(request, false, {4096}).ok());
  request.only.length = 9;
  EXPECT_THAT(std::string(CheckRequest(request, false, {4096}).message()),
              HasSubstr("sges[0]: 9 bytes at 4088"));
  request.only.length = 8;
  request.sge_count = 2;
  EXPECT_THAT(std::string(CheckRequest(request, true, {4096}).message()),
              HasSubstr("one_line: 1 of a request with 2 buffers"));
  request.one_line = 2;
  request.sge_count = 1;
  EXPECT_FALSE(CheckRequest(request, true, {4096}).ok());
}

TEST(CheckRequest, shouldRefuseWhatTheDeviceDoesNotDo) {
  RequestLimits limits = {4096};
  limits.max_message_bytes = 100;
  limits.missing_opcodes = 1u << static_cast<uint32_t>(verbs::Opcode::kFetchAndAdd);
  arena::WorkRequest request = {};
  request.sge_count = 2;
  request.sges[0] = {0, 60, 0};
  request.sges[1] = {0, 40, 0};
  EXPECT_TRUE(CheckRequest(request, false, limits).ok());
  request.sges[1].length = 41;
  EXPECT_THAT(std::string(CheckRequest(request, false, limits).message()),
              HasSubstr("101 bytes in one message, the device sends at most 100"));
  EXPECT_TRUE(CheckRequest(request, true, limits).ok());  // nothing is sent
  request.sge_count = 1;
  request.sges[0].length = 8;
  request.opcode = static_cast<uint8_t>(verbs::Opcode::kCompareAndSwap);
  EXPECT_TRUE(CheckRequest(request, false, limits).ok());
  request.opcode = static_cast<uint8_t>(verbs::Opcode::kFetchAndAdd);
  EXPECT_THAT(std::string(CheckRequest(request, false, limits).message()),
              HasSubstr("the device has no FETCH_AND_ADD"));
}

arena::WorkRequest RequestOf(verbs::Opcode opcode, uint64_t offset, uint32_t length) {
  arena::WorkRequest request = {};
  request.opcode = static_cast<uint8_t>(opcode);
  request.sge_count = 1;
  request.sges[0] = {offset, length, 0};
  return request;
}

struct RequestListTest : ::testing::Test {
  explicit RequestListTest(uint32_t inline_bytes = 0) {
    arena::Shape shape = TestShape(1, 1, 8);
    shape.max_inline_bytes = inline_bytes;
    arena.emplace(arena::Arena::Create(shape, "kv").value());
    list.emplace(*arena, kLkey, 4);
  }
  uint64_t AddressOf(uint64_t offset) const {
    return reinterpret_cast<uint64_t>(arena->buffers()) + offset;
  }

  std::optional<arena::Arena> arena;
  std::optional<RequestList> list;
};

TEST_F(RequestListTest, shouldTranslateEveryFieldOfASend) {
  arena::WorkRequest request = RequestOf(verbs::Opcode::kCompareAndSwap, 64, 8);
  request.flags = arena::kRequestFence | arena::kRequestSolicited;
  request.immediate = 1;
  request.invalidate_rkey = 2;
  request.remote_address = 24;
  request.rkey = 4;
  request.compare_add = 5;
  request.swap = 6;
  ASSERT_TRUE(list->AddSend(request, 99).ok());
  ASSERT_THAT(list->sends(), SizeIs(1));
  const verbs::SendRequest& sent = list->sends()[0];
  EXPECT_EQ(sent.wr_id, 99u);
  EXPECT_EQ(sent.opcode, verbs::Opcode::kCompareAndSwap);
  EXPECT_TRUE(sent.fence);
  EXPECT_TRUE(sent.solicited);
  EXPECT_FALSE(sent.inline_data);
  EXPECT_EQ(sent.immediate, 1u);
  EXPECT_EQ(sent.invalidate_rkey, 2u);
  EXPECT_EQ(sent.remote_address, 24u);
  EXPECT_EQ(sent.rkey, 4u);
  EXPECT_EQ(sent.compare_add, 5u);
  EXPECT_EQ(sent.swap, 6u);
  ASSERT_THAT(sent.sges, SizeIs(1));
  EXPECT_EQ(sent.sges[0].address, AddressOf(64));
  EXPECT_EQ(sent.sges[0].length, 8u);
  EXPECT_EQ(sent.sges[0].lkey, kLkey);
}

TEST_F(RequestListTest, shouldKeepTheListsOfItsRequestsApart) {
  arena::WorkRequest two = RequestOf(verbs::Opcode::kSend, 0, 1);
  two.sge_count = 2;
  two.sges[1] = {100, 2, 0};
  ASSERT_TRUE(list->AddSend(two, 1).ok());
  ASSERT_TRUE(list->AddReceive(RequestOf(verbs::Opcode::kSend, 200, 3), 2).ok());
  ASSERT_TRUE(list->AddSend(RequestOf(verbs::Opcode::kSend, 300, 4), 3).ok());
  ASSERT_THAT(list->sends(), SizeIs(2));
  ASSERT_THAT(list->receives(), SizeIs(1));
  ASSERT_THAT(list->sends()[0].sges, SizeIs(2));
  EXPECT_EQ(list->sends()[0].sges[1].address, AddressOf(100));
  EXPECT_EQ(list->receives()[0].wr_id, 2u);
  ASSERT_THAT(list->receives()[0].sges, SizeIs(1));
  EXPECT_EQ(list->receives()[0].sges[0].address, AddressOf(200));
  ASSERT_THAT(list->sends()[1].sges, SizeIs(1));
  EXPECT_EQ(list->sends()[1].sges[0].address, AddressOf(300));
  list->Clear();
  EXPECT_THAT(list->sends(), IsEmpty());
  EXPECT_THAT(list->receives(), IsEmpty());
}

TEST_F(RequestListTest, shouldReadNoMoreThanTheFirstLineOfARequestThatIsOne) {
  arena::WorkRequest request = RequestOf(verbs::Opcode::kWrite, 300, 4);
  request.one_line = 1;
  request.only = {64, 8, 0};
  ASSERT_TRUE(list->AddSend(request, 1).ok());
  ASSERT_THAT(list->sends()[0].sges, SizeIs(1));
  EXPECT_EQ(list->sends()[0].sges[0].address, AddressOf(64));
  EXPECT_EQ(list->sends()[0].sges[0].length, 8u);
  request.opcode = 0;
  ASSERT_TRUE(list->AddReceive(request, 2).ok());
  EXPECT_EQ(list->receives()[0].sges[0].address, AddressOf(64));
}

// A send and a region of 100 bytes.
struct RegionRequestListTest : RequestListTest {
  RegionRequestListTest() : RequestListTest(16) {
    arena::RegionRecord& region = arena->region(5);
    region.address = 0x7000'0000;
    region.lkey = 78;
    region.length = 100;
  }
  static arena::WorkRequest InRegion(verbs::Opcode opcode, uint64_t at, uint32_t length) {
    return RequestOf(opcode, arena::RegionOffset(5) + at, length);
  }
  std::string WhyNot(const arena::WorkRequest& request) {
    return std::string(list->AddSend(request, 1).message());
  }
};

TEST_F(RegionRequestListTest, shouldSendFromARegionWithItsKeyAndNeverInline) {
  for (const verbs::Opcode opcode :
       {verbs::Opcode::kSend, verbs::Opcode::kWrite, verbs::Opcode::kWriteWithImmediate}) {
    list->Clear();
    ASSERT_EQ(list->AddSend(InRegion(opcode, 92, 8), 1), absl::OkStatus());
    const verbs::SendRequest& sent = list->sends()[0];
    ASSERT_THAT(sent.sges, SizeIs(1));
    EXPECT_EQ(sent.sges[0].address, 0x7000'0000u + 92);
    EXPECT_EQ(sent.sges[0].length, 8u);
    EXPECT_EQ(sent.sges[0].lkey, 78u);
    EXPECT_FALSE(sent.inline_data);
    EXPECT_EQ(list->send_bytes(), 8u);
  }
}

TEST_F(RegionRequestListTest, shouldSendFromTheBuffersAndARegionInOneMessage) {
  arena::WorkRequest request = RequestOf(verbs::Opcode::kSend, 64, 4);
  request.sge_count = 2;
  request.sges[1] = InRegion(verbs::Opcode::kSend, 0, 4).sges[0];
  ASSERT_EQ(list->AddSend(request, 1), absl::OkStatus());
  const verbs::SendRequest& sent = list->sends()[0];
  ASSERT_THAT(sent.sges, SizeIs(2));
  EXPECT_EQ(sent.sges[0].address, AddressOf(64));
  EXPECT_EQ(sent.sges[0].lkey, kLkey);
  EXPECT_EQ(sent.sges[1].address, 0x7000'0000u);
  EXPECT_EQ(sent.sges[1].lkey, 78u);
  EXPECT_FALSE(sent.inline_data);
}

TEST_F(RegionRequestListTest, shouldRefuseWhatIsNotWithinARegionThatExists) {
  const auto send = verbs::Opcode::kSend;
  EXPECT_THAT(WhyNot(InRegion(send, 93, 8)),
              HasSubstr("sges[0]: 8 bytes at 93 are not within the 100 bytes of region 5"));
  EXPECT_THAT(WhyNot(InRegion(send, 100, 0)), HasSubstr("region 5"));
  EXPECT_THAT(WhyNot(InRegion(send, 1, ~0u)), HasSubstr("region 5"));
  EXPECT_THAT(WhyNot(RequestOf(send, arena::RegionOffset(6), 1)),
              HasSubstr("not within the 0 bytes of region 6"));
  EXPECT_THAT(WhyNot(RequestOf(send, arena::RegionOffset(5) - 1, 2)), HasSubstr("region 4"));
  EXPECT_THAT(WhyNot(RequestOf(send, arena::RegionOffset(65), 1)),
              HasSubstr("bytes of the buffers"));
  EXPECT_THAT(list->sends(), IsEmpty());
}

TEST_F(RegionRequestListTest, shouldLetNoRequestWriteIntoARegion) {
  for (const verbs::Opcode opcode :
       {verbs::Opcode::kRead, verbs::Opcode::kCompareAndSwap, verbs::Opcode::kFetchAndAdd}) {
    EXPECT_THAT(WhyNot(InRegion(opcode, 0, 8)), HasSubstr("sges[0]: region 5 is for sends"));
  }
  arena::WorkRequest receive = InRegion(verbs::Opcode::kSend, 0, 8);
  EXPECT_THAT(std::string(list->AddReceive(receive, 1).message()),
              HasSubstr("sges[0]: region 5 is for sends"));
  receive.one_line = 1;
  receive.only = receive.sges[0];
  EXPECT_FALSE(list->AddReceive(receive, 1).ok());
  EXPECT_FALSE(CheckRequest(receive, true, LimitsOf(*arena)).ok());
  EXPECT_THAT(list->receives(), IsEmpty());
}

TEST_F(RequestListTest, shouldNotHoldWhatIsWrong) {
  const uint64_t bytes = arena->shape().buffer_bytes;
  arena::WorkRequest one_line = RequestOf(verbs::Opcode::kSend, 0, 1);
  one_line.one_line = 1;
  one_line.only = {bytes, 1, 0};
  EXPECT_FALSE(list->AddSend(one_line, 1).ok());
  EXPECT_FALSE(list->AddReceive(one_line, 1).ok());
  one_line.only = {};
  one_line.sge_count = 0;
  EXPECT_FALSE(list->AddSend(one_line, 1).ok());
  EXPECT_FALSE(list->AddSend(RequestOf(verbs::Opcode::kSend, bytes, 1), 1).ok());
  EXPECT_FALSE(list->AddReceive(RequestOf(verbs::Opcode::kSend, bytes, 1), 1).ok());
  EXPECT_FALSE(list->AddReceive(RequestOf(verbs::Opcode::kRead, 0, 1), 1).ok());
  EXPECT_THAT(list->sends(), IsEmpty());
  EXPECT_THAT(list->receives(), IsEmpty());
}

TEST_F(RequestListTest, shouldNotFollowWhatIsThereLater) {
  arena::WorkRequest request = RequestOf(verbs::Opcode::kSend, 64, 100);
  ASSERT_TRUE(list->AddSend(request, 1).ok());
  request = RequestOf(verbs::Opcode::kRead, ~uint64_t{0}, ~0u);
  EXPECT_EQ(list->sends()[0].opcode, verbs::Opcode::kSend);
  EXPECT_EQ(list->sends()[0].sges[0].address, AddressOf(64));
  EXPECT_EQ(list->sends()[0].sges[0].length, 100u);
}

TEST(RequestListOfShardsTest, shouldNameTheHeapOfItsShardAlone) {
  arena::Shape shape = TestShape(2, 1, 8);
  shape.heap_pages = 4;
  const arena::Arena arena = arena::Arena::Create(shape, "kv").value();
  RequestList list(arena, kLkey, 4);
  const auto names = [&](uint32_t heap) {
    const arena::WorkRequest request =
        RequestOf(verbs::Opcode::kSend, arena::HeapOffset(shape, heap), 8);
    const bool sent = list.AddSend(request, 1).ok();
    EXPECT_EQ(list.AddReceive(request, 2).ok(), sent);
    return sent;
  };
  EXPECT_TRUE(names(0) && names(1));
  for (const uint32_t shard : {1u, 0u, 1u}) {
    list.Clear(shard);
    EXPECT_TRUE(names(shard));
    EXPECT_FALSE(names(1 - shard));
    EXPECT_TRUE(list.AddSend(RequestOf(verbs::Opcode::kSend, 0, 8), 1).ok());
  }
  list.Clear();
  EXPECT_TRUE(names(0) && names(1));
}

struct InlineRequestListTest : RequestListTest {
  InlineRequestListTest() : RequestListTest(16) {}

  bool IsInline(verbs::Opcode opcode, uint32_t length) {
    list->Clear();
    EXPECT_TRUE(list->AddSend(RequestOf(opcode, 0, length), 1).ok());
    return list->sends()[0].inline_data;
  }
};

TEST_F(InlineRequestListTest, shouldSendShortMessagesInline) {
  EXPECT_TRUE(IsInline(verbs::Opcode::kSend, 0));
  EXPECT_TRUE(IsInline(verbs::Opcode::kSend, 16));
  EXPECT_TRUE(IsInline(verbs::Opcode::kWrite, 8));
  EXPECT_FALSE(IsInline(verbs::Opcode::kSend, 17));
  EXPECT_FALSE(IsInline(verbs::Opcode::kRead, 8));
  EXPECT_FALSE(IsInline(verbs::Opcode::kFetchAndAdd, 8));
}

}  // namespace
}  // namespace baton::driver
