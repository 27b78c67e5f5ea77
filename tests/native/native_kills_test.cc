// A driver is killed at random moments, with the device's queues in its hands, and the next process
// goes on with them: a peer that knows nothing of it misses no message, and gets none twice or in
// another order.
#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>
#include <iostream>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "lib/base/clock.h"
#include "lib/nic/soft_options.h"
#include "tests/harness/wait_until.h"
#include "tests/native/checking_peer.h"
#include "tests/native/echo_service.h"
#include "tests/native/native_environment.h"

namespace baton::native {
namespace {

using verbs::soft::FaultKind;

constexpr uint64_t kMicrosecond = 1000;

void Sleep(uint64_t nanoseconds) {
  const timespec time = {static_cast<time_t>(nanoseconds / 1'000'000'000),
                         static_cast<long>(nanoseconds % 1'000'000'000)};
  nanosleep(&time, nullptr);
}

// What the recoveries of all owners have met.
struct Met {
  uint64_t found_posted = 0, never_posted = 0, receives = 0, answers = 0, markers = 0, spares = 0,
           resumed = 0;
  uint64_t within_recovery = 0;  // killed before they had taken over

  void Add(const driver::RecoveryCounters& one) {
    found_posted += one.sends_found_posted;
    never_posted += one.sends_never_posted;
    receives += one.receives_ambiguous;
    answers += one.answers;
    markers += one.markers;
    spares += one.spares;
    resumed += one.transactions_resumed;
  }
};

class NativeKills : public ::testing::Test {
 protected:
  void Run(const EchoOptions& options, uint64_t kills) {
    const uint64_t seed = harness::Setting("BATON_NATIVE_SEED", std::random_device()());
    std::mt19937_64 random(seed);
    std::cout << kills << " kills, seed " << seed << std::endl;
    CheckingPeer peer(HostUnderTest(), options.connections, options.depth / 2);
    EchoService service(HostUnderTest(), options);
    peer.Connect(service.port());
    ASSERT_TRUE(service.Establish());
    Met met;
    const uint64_t begin = MonotonicNanoseconds();
    for (uint64_t killed = 0; killed < kills; ++killed) {
      KillOne(service, peer, random, killed, &met);
      ASSERT_STREQ(service.record().failure, "") << "after " << killed << " kills";
      ASSERT_STREQ(peer.record().failure, "") << "after " << killed << " kills";
    }
    const uint64_t took = MonotonicNanoseconds() - begin;
    service.Begin(service.Fork());
    ASSERT_TRUE(peer.Finish());
    EXPECT_STREQ(service.record().failure, "");
    EXPECT_EQ(service.Ended(), 0u);
    const PeerRecord& record = peer.record();
    std::cout << record.sent << " messages, " << record.lost << " lost, " << record.repeated
              << " repeated, " << record.reordered << " reordered, " << record.torn << " torn, "
              << record.miscounted << " miscounted; longest silence "
              << record.longest_silence_ns / kMicrosecond << " us\n"
              << kills << " kills in " << took / 1'000'000 << " ms, " << met.within_recovery
              << " of them before the owner had taken over; ambiguous sends: " << met.found_posted
              << " had been posted, " << met.never_posted
              << " had not; ambiguous receives: " << met.receives
              << "; answers of the device: " << met.answers << "; markers: " << met.markers
              << "; spares: " << met.spares << "; transactions resumed: " << met.resumed
              << std::endl;
    // A device that says what is queued needs neither.
    if (IsSoftUnderTest()) EXPECT_EQ(met.markers + met.spares, 0u);
    EXPECT_STREQ(record.failure, "");
    EXPECT_EQ(record.answered, record.sent);
    EXPECT_EQ(record.lost, 0u);
    EXPECT_EQ(record.repeated, 0u);
    EXPECT_EQ(record.reordered, 0u);
    EXPECT_EQ(record.torn, 0u);
    EXPECT_EQ(record.miscounted, 0u);
    // It was under load.
    EXPECT_GT(record.sent, kills);
  }

 private:
  static constexpr size_t kStandbys = 3;

  // Begins an owner, lets it live for a while, and kills it. Two of three live until they have
  // taken over; so that work goes on, and what one connection may have of markers is not used up.
  void KillOne(EchoService& service, const CheckingPeer& peer, std::mt19937_64& random,
               uint64_t number, Met* met) {
    while (service.children() < number + 1 + kStandbys) service.Fork();
    const uint64_t before = service.record().took_over;
    const uint64_t answered = peer.record().answered;
    service.record().recovery = {};
    service.Begin(number);
    const uint64_t patience =
        harness::Patient(std::chrono::nanoseconds(std::chrono::seconds(20))).count();
    const uint64_t deadline = MonotonicNanoseconds() + patience;
    if (number % 3 != 0) {
      while (service.record().took_over == before || peer.record().answered < answered + 8) {
        ASSERT_STREQ(service.record().failure, "");
        ASSERT_STREQ(peer.record().failure, "");
        ASSERT_LT(MonotonicNanoseconds(), deadline) << "owner " << number << " does not go on";
        Sleep(100 * kMicrosecond);
      }
    }
    Sleep(random() % (3000 * kMicrosecond));
    service.Kill(number);
    if (service.record().took_over == before) ++met->within_recovery;
    met->Add(service.record().recovery);
  }
};

// What NICs may do. Each is a case of its own on the soft device.
struct Behaviour {
  const char* name;
  verbs::soft::NicBehaviour nic;
  std::vector<verbs::soft::FaultRule> faults = {};
};

const Behaviour kBehaviours[] = {
    {"executesBeforeTheRing", {.seed = 1, .early = 0.5}},
    {"hearsRingsLate", {.seed = 2, .late = 0.9}},
    {"hearsRingsOnceMore", {.seed = 3, .repeated = 0.5}},
    {"hearsRingsInAnotherOrder", {.seed = 4, .late = 0.5, .reordered = 0.5}},
    {"writesOwnerBytesLate", {.seed = 5, .owner_byte_us = 50}},
    {"isSlow", {}, {{.kind = FaultKind::kDelay, .probability = 0.01, .duration_us = 1000}}},
    {"isNotReady", {}, {{.kind = FaultKind::kRnr, .probability = 0.01}}},
    {"doesAll",
     {.seed = 8, .early = 0.1, .late = 0.5, .repeated = 0.2, .reordered = 0.5, .owner_byte_us = 20},
     {{.kind = FaultKind::kDelay, .probability = 0.005, .duration_us = 500},
      {.kind = FaultKind::kRnr, .probability = 0.005}}},
};

class NativeKillsOnASoftNic : public NativeKills,
                              public ::testing::WithParamInterface<Behaviour> {};

TEST_P(NativeKillsOnASoftNic, shouldLoseAndRepeatNothing) {
  EchoOptions options;
  options.nic.behaviour = GetParam().nic;
  options.nic.faults = {.seed = 7, .rules = GetParam().faults};
  Run(options, harness::Setting("BATON_NATIVE_KILLS", 50));
}

INSTANTIATE_TEST_SUITE_P(Behaviours, NativeKillsOnASoftNic,
                         ::testing::ValuesIn(IsSoftUnderTest() ? absl::MakeConstSpan(kBehaviours)
                                                               : absl::Span<const Behaviour>()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NativeKillsOnASoftNic);

TEST_F(NativeKills, shouldLoseAndRepeatNothing) {
  Run({}, harness::Setting("BATON_NATIVE_KILLS", 100));
}

TEST_F(NativeKills, shouldLoseAndRepeatNothingWhenOwnersDoNotSleep) {
  EchoOptions options;
  options.sleeps = false;
  options.connections = 2;
  Run(options, harness::Setting("BATON_NATIVE_KILLS", 100));
}

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) {
  baton::native::CheckingPeer::RunIfPeer(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
