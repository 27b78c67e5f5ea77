// A process that follows a dead `baton-driver`, from which it was forked: what becomes of grants
// and regions. The device is the soft one, because no other can be followed.
#include <cstdint>
#include <cstring>
#include <utility>

#include "gtest/gtest.h"
#include "lib/driver/regions.h"
#include "tests/lib/driver/own_memory.h"
#include "tests/lib/driver/queue_driver_fixture.h"

namespace baton::driver {
namespace {

using testing::OwnMemory;
using testing::RawPeer;
using verbs::CompletionStatus;

class FollowerTest : public testing::QueueDriverTest {
 protected:
  DeviceObjects& objects() { return *driver->objects(); }
  void TakeOver() { TakeOverGrants(*arena, device.get(), &objects()); }
  // Returns how a peer's READ of it ends.
  CompletionStatus ReadBy(RawPeer& peer, uint32_t rkey, uint64_t address) {
    verbs::SendRequest request;
    request.opcode = verbs::Opcode::kRead;
    request.rkey = rkey;
    request.remote_address = address;
    peer.Post(request, 8);
    const size_t before = peer.sent.size();
    EXPECT_TRUE(Until([&] { return peer.sent.size() == before + 1; }));
    return peer.sent.back().status;
  }
};

// The dead one had granted it, and told nobody.
TEST_F(FollowerTest, shouldWithdrawAGrantThatItDoesNotKnow) {
  const uint32_t grant = Grant(0, 64).value();
  const uint32_t rkey = arena->grant(grant).rkey;
  RawPeer peer;
  Established(peer);
  const auto of_the_dead = std::exchange(objects().grants[grant], {});
  TakeOver();
  EXPECT_EQ(arena->grant(grant).length, 0u);
  EXPECT_EQ(ReadBy(peer, rkey, reinterpret_cast<uint64_t>(arena->buffers())),
            CompletionStatus::kRemoteAccessError);
}

TEST_F(FollowerTest, shouldWithdrawARegionThatItDoesNotKnow) {
  const OwnMemory memory;
  const uint32_t region = Register(memory.fd(), 0, 4096, verbs::kRemoteRead).value();
  const arena::RegionRecord record = arena->region(region);
  RawPeer peer;
  Established(peer);
  const auto of_the_dead = std::exchange(objects().grants[arena::GrantOfRegion(region)], {});
  TakeOver();
  EXPECT_EQ(arena->region(region).length, 0u);
  EXPECT_EQ(ReadBy(peer, record.rkey, record.address), CompletionStatus::kRemoteAccessError);
}

// The dead one had revoked it, and told nobody.
TEST_F(FollowerTest, shouldFreeWhatTheArenaDoesNotHaveAnyMore) {
  const uint32_t grant = Grant(0, 64).value();
  arena->grant(grant).length = 0;
  TakeOver();
  EXPECT_TRUE(objects().grants[grant].is_free());
}

TEST_F(FollowerTest, shouldKeepWhatBothKnow) {
  OwnMemory memory;
  memory.Put(0, "read me!");
  const uint32_t region = Register(memory.fd(), 0, 4096, verbs::kRemoteRead).value();
  const uint32_t grant = Grant(0, 64).value();
  RawPeer peer;
  Established(peer);
  TakeOver();
  EXPECT_EQ(ReadBy(peer, arena->region(region).rkey, arena->region(region).address),
            CompletionStatus::kSuccess);
  EXPECT_EQ(std::memcmp(peer.send_slot(0), "read me!", 8), 0);
  EXPECT_EQ(ReadBy(peer, arena->grant(grant).rkey, reinterpret_cast<uint64_t>(arena->buffers())),
            CompletionStatus::kSuccess);
  EXPECT_EQ(Revoke(arena::GrantOfRegion(region)), absl::OkStatus());
  EXPECT_EQ(Revoke(grant), absl::OkStatus());
}

}  // namespace
}  // namespace baton::driver
