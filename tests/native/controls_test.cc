// Owners are killed around the moment at which they give sends to the device. What the next one
// does with those of which it is not known whether they were posted, the peer finds: nothing, where
// recovery is right. Linked with a recovery that posts all of them again, or none, exactly what
// recovery itself says of them: a reply twice for each that had been posted, or one lost for each
// that had not.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <random>

#include "tests/native/checking_peer.h"
#include "tests/native/echo_service.h"
#include "tests/native/native_environment.h"
#include "tests/native/stepped_owners.h"

namespace baton::native {
namespace {

#if defined(ALWAYS_REPOSTS)
constexpr bool kReposts = true, kForgets = false;
#elif defined(NEVER_REPOSTS)
constexpr bool kReposts = false, kForgets = true;
#else
constexpr bool kReposts = false, kForgets = false;
#endif

constexpr uint32_t kWindow = 4;
// More than from there to the cursor that says that they are posted, and fewer than to the next
// owner's reposts: a recovery that is killed between two of these harms less than is predicted.
constexpr uint64_t kInstructions = 500;

TEST(NativeControl, shouldFindExactlyWhatRecoveryPredicts) {
  EchoOptions options;
  options.sleeps = false;
  options.depth = 2 * kWindow;
  const uint64_t kills = harness::Setting("BATON_NATIVE_KILLS", 60);
  const uint64_t seed = harness::Setting("BATON_NATIVE_SEED", std::random_device()());
  std::mt19937_64 random(seed);
  std::cout << kills << " kills, seed " << seed << std::endl;
  CheckingPeer peer(HostUnderTest(), options.connections, kWindow);
  EchoService service(HostUnderTest(), options);
  peer.Connect(service.port());
  ASSERT_TRUE(service.Establish());
  SteppedOwners owners(&service, &peer, options, kWindow);
  for (uint64_t i = 0; i < kills; ++i) {
    Stepper& owner = owners.Begin();
    const absl::Status status = owners.RunToWork();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_NE(owner.RunTo({StartOfPost()}), 0u) << service.record().failure;
    // Every second one before any of its requests is in the queue.
    ASSERT_TRUE(owner.Step(random() % (i % 2 == 0 ? 30 : kInstructions)));
    owners.Kill();
    ASSERT_STREQ(service.record().failure, "") << "after " << i << " kills";
    ASSERT_STREQ(peer.record().failure, "") << "after " << i << " kills";
  }
  owners.Begin();
  const absl::Status status = owners.RunToSettled();
  ASSERT_TRUE(status.ok()) << status;
  owners.Release();
  ASSERT_TRUE(peer.Finish());

  const uint64_t repeated = kReposts ? owners.sends_found_posted() : 0;
  const uint64_t lost = kForgets ? owners.sends_never_posted() : 0;
  const PeerRecord& record = peer.record();
  std::cout << "recoveries: " << owners.sends_found_posted() << " ambiguous sends had been posted, "
            << owners.sends_never_posted() << " had not\npredicted: " << repeated << " repeated, "
            << lost << " lost\nfound: " << record.repeated << " repeated, " << record.lost
            << " lost, " << record.reordered << " reordered, " << record.torn << " torn, "
            << record.miscounted << " miscounted, of " << record.sent << " messages" << std::endl;
  EXPECT_STREQ(service.record().failure, "");
  EXPECT_STREQ(record.failure, "");
  EXPECT_EQ(service.Ended(), 0u);
  EXPECT_EQ(record.repeated, repeated);
  EXPECT_EQ(record.lost, lost);
  EXPECT_EQ(record.reordered, 0u);
  EXPECT_EQ(record.torn, 0u);
  EXPECT_EQ(record.miscounted, 0u);
  // There was something to be found.
  EXPECT_GT(owners.sends_found_posted(), 0u);
  EXPECT_GT(owners.sends_never_posted(), 0u);
}

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) {
  baton::native::CheckingPeer::RunIfPeer(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
