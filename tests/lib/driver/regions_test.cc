// Memory of a worker's own that is registered on demand: what the driver accepts, who may name it,
// and how long it stays.
#include "lib/driver/regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "tests/lib/driver/own_memory.h"
#include "tests/lib/driver/queue_driver_fixture.h"

namespace baton::driver {
namespace {

using arena::CompletionKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OwnMemory;
using testing::RawPeer;
using verbs::CompletionStatus;

class RegionsTest : public testing::QueueDriverTest {
 protected:
  uint32_t Registered(const OwnMemory& memory, uint64_t offset, uint64_t length,
                      uint32_t access = 0) {
    const auto region = Register(memory.fd(), offset, length, access);
    EXPECT_TRUE(region.ok()) << region.status();
    return region.value_or(1);
  }
  absl::Status Unregister(uint32_t region) { return Revoke(arena::GrantOfRegion(region)); }
  static uint64_t At(uint32_t region, uint64_t offset) {
    return arena::RegionOffset(region) + offset;
  }
  std::string WhyNot(int memfd, uint64_t offset, uint64_t length, uint32_t access = 0) {
    const absl::Status refused = Register(memfd, offset, length, access).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    return std::string(refused.message());
  }
  // A peer's READ from the beginning of the region.
  verbs::SendRequest ReadOf(uint32_t region) const {
    verbs::SendRequest request;
    request.opcode = verbs::Opcode::kRead;
    request.rkey = arena->region(region).rkey;
    request.remote_address = arena->region(region).address;
    return request;
  }
};

TEST_F(RegionsTest, shouldSendFromARegion) {
  OwnMemory memory;
  memory.Put(4096 + 10, "hello");
  const uint32_t region = Registered(memory, 4096, 8192);
  const arena::RegionRecord& record = arena->region(region);
  EXPECT_EQ(record.length, 8192u);
  EXPECT_EQ(record.offset, 4096u);
  EXPECT_EQ(record.descriptor, kHeld);
  EXPECT_EQ(record.access, 0u);
  RawPeer peer;
  const uint32_t connection = Established(peer);
  peer.Receive();
  peer.Receive();
  writer().Send(connection, At(region, 10), 5);
  arena::WorkRequest& two = writer().Send(connection, 0, 2);
  Put(0, "<>");
  two.sge_count = 2;
  two.sges[1] = {At(region, 8190), 2, 0};
  memory.Put(4096 + 8190, "..");
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_TRUE(Until([&] { return peer.received.size() == 2; }));
  EXPECT_THAT(peer.received, ElementsAre("hello", "<>.."));
}

TEST_F(RegionsTest, shouldLetPeersReadWhatWasRegisteredForIt) {
  OwnMemory memory;
  memory.Put(100, "read me!");
  const uint32_t region = Registered(memory, 100, 8, verbs::kRemoteRead);
  RawPeer peer;
  Established(peer);
  const verbs::SendRequest request = ReadOf(region);
  peer.Post(request, 8);
  ASSERT_TRUE(Until([&] { return peer.sent.size() == 1; }));
  EXPECT_EQ(peer.sent[0].status, CompletionStatus::kSuccess);
  EXPECT_EQ(std::memcmp(peer.send_slot(0), "read me!", 8), 0);
  ASSERT_EQ(Unregister(region), absl::OkStatus());
  peer.Post(request, 8);
  ASSERT_TRUE(Until([&] { return peer.sent.size() == 2; }));
  EXPECT_EQ(peer.sent[1].status, CompletionStatus::kRemoteAccessError);
}

TEST_F(RegionsTest, shouldLetNoPeerReadWhatWasNot) {
  const OwnMemory memory;
  const uint32_t region = Registered(memory, 0, 4096);
  RawPeer peer;
  Established(peer);
  const verbs::SendRequest request = ReadOf(region);
  peer.Post(request, 8);
  ASSERT_TRUE(Until([&] { return peer.sent.size() == 1; }));
  EXPECT_EQ(peer.sent[0].status, CompletionStatus::kRemoteAccessError);
}

TEST_F(RegionsTest, shouldRefuseMemoryThatCouldChangeOrIsShort) {
  const OwnMemory memory(8192);
  EXPECT_THAT(WhyNot(memory.fd(), 0, 8193), HasSubstr("8193 bytes at 0 are not within the 8192"));
  EXPECT_THAT(WhyNot(memory.fd(), 8192, 1), HasSubstr("1 bytes at 8192 are not within"));
  EXPECT_THAT(WhyNot(memory.fd(), ~uint64_t{0}, 2), HasSubstr("are not within"));
  EXPECT_THAT(WhyNot(memory.fd(), 0, 0), HasSubstr("length: 0 bytes"));
  EXPECT_THAT(WhyNot(memory.fd(), 0, ~uint64_t{0}), HasSubstr("length: "));
  EXPECT_THAT(WhyNot(OwnMemory(8192, 0).fd(), 0, 1), HasSubstr("F_SEAL_SHRINK"));
  EXPECT_THAT(WhyNot(OwnMemory(8192, F_SEAL_SHRINK).fd(), 0, 1), HasSubstr("F_SEAL_GROW"));
  EXPECT_THAT(WhyNot(OwnMemory(8192, OwnMemory::kSeals | F_SEAL_FUTURE_WRITE).fd(), 0, 1),
              HasSubstr("sealed against writing"));
  const FileDescriptor other(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(WhyNot(other.get(), 0, 1), HasSubstr("is no memfd"));
  EXPECT_EQ(driver->objects()->Count().memory_regions, 2u);  // nothing is left of them
}

TEST_F(RegionsTest, shouldOfferNoAccessButReading) {
  const OwnMemory memory;
  for (const uint32_t access :
       {verbs::kRemoteWrite | verbs::kLocalWrite, verbs::kRemoteAtomic | verbs::kLocalWrite,
        verbs::kRemoteRead | verbs::kRemoteWrite | verbs::kLocalWrite}) {
    EXPECT_THAT(WhyNot(memory.fd(), 0, 4096, access), HasSubstr("access: "));
  }
}

TEST_F(RegionsTest, shouldStayWhileAPostedRequestNamesIt) {
  OwnMemory memory;
  memory.Put(0, "late");
  const uint32_t region = Registered(memory, 0, 4096);
  RawPeer peer;
  const uint32_t connection = Established(peer);
  writer().Send(connection, At(region, 0), 4);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  const absl::Status refused = Unregister(region);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1 work requests"));
  EXPECT_EQ(arena->region(region).length, 4096u);
  peer.Receive();
  EXPECT_EQ(NextOfKind(CompletionKind::kSend).status, 0);
  EXPECT_TRUE(Until([&] { return peer.received.size() == 1; }));
  EXPECT_THAT(peer.received, ElementsAre("late"));
  EXPECT_EQ(Unregister(region), absl::OkStatus());
  EXPECT_EQ(arena->region(region).length, 0u);
  EXPECT_EQ(Unregister(region).code(), absl::StatusCode::kNotFound);
  writer().Send(connection, At(region, 0), 4);
  EXPECT_EQ(Commit(), CommitOutcome::kInvalid);
  EXPECT_THAT(std::string(error.message()), HasSubstr("of region 1"));
}

TEST_F(RegionsTest, shouldStayWhileATransactionThatIsNotAppliedNamesIt) {
  const OwnMemory memory;
  const uint32_t region = Registered(memory, 0, 4096);
  const uint32_t other = Registered(memory, 0, 4096);
  RawPeer peer;
  const uint32_t connection = Established(peer);
  writer().Send(connection, At(region, 0), 4);
  writer().Publish();
  EXPECT_EQ(Unregister(region).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Unregister(other), absl::OkStatus());
  EXPECT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kApplied) << error;
}

TEST_F(RegionsTest, shouldNotStayForAConnectionThatIsOver) {
  const OwnMemory memory;
  const uint32_t region = Registered(memory, 0, 4096);
  RawPeer peer;
  const uint32_t connection = Established(peer);
  writer().Send(connection, At(region, 0), 4);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  peer.Disconnect();
  while (Next().kind != static_cast<uint8_t>(CompletionKind::kDisconnected)) {
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(Unregister(region), absl::OkStatus());
}

TEST_F(RegionsTest, shouldBeThereForTheNextDriver) {
  OwnMemory memory;
  memory.Put(0, "once");
  const uint32_t region = Registered(memory, 0, 4096);
  RawPeer peer;
  const uint32_t connection = Established(peer);
  writer().Send(connection, At(region, 0), 4);
  writer().Publish();
  Recover();
  EXPECT_EQ(arena->region(region).length, 4096u);
  ASSERT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kApplied) << error;
  Recover();
  peer.Receive();
  peer.Receive();
  EXPECT_EQ(NextOfKind(CompletionKind::kSend).status, 0);
  EXPECT_TRUE(Until([&] { return peer.received.size() == 1; }));
  EXPECT_THAT(peer.received, ElementsAre("once"));
  EXPECT_EQ(unread(), 0u);
  EXPECT_EQ(Unregister(region), absl::OkStatus());
}

// A worker may still believe in it.
TEST_F(RegionsTest, shouldNotHaveTheNumberOfOneThatWasJustUnregistered) {
  const OwnMemory memory;
  const uint32_t region = Registered(memory, 0, 4096);
  ASSERT_EQ(Unregister(region), absl::OkStatus());
  EXPECT_NE(Registered(memory, 0, 4096), region);
}

TEST_F(RegionsTest, shouldBeBoundedAndUseTheirPlacesAgain) {
  const OwnMemory memory;
  for (uint32_t i = 1; i <= arena::kRegions; ++i) EXPECT_EQ(Registered(memory, 0, 4096), i);
  EXPECT_EQ(Register(memory.fd(), 0, 4096).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Grant(0, 64).ok());  // grants have places of their own
  EXPECT_EQ(Unregister(7), absl::OkStatus());
  EXPECT_EQ(Registered(memory, 0, 4096), 7u);
  for (uint32_t i = 1; i <= arena::kRegions; ++i) EXPECT_EQ(Unregister(i), absl::OkStatus());
}

}  // namespace
}  // namespace baton::driver
