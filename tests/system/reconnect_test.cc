// Connections of a service end, and others come: none is refused, because queue pairs of former
// connections serve again, or rest beside as many others.
// BATON_KILLS: how many native owners are killed meanwhile (12); BATON_SEED: of the moments.
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "lib/base/status.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/setting.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"

namespace baton {
namespace {

using harness::Cluster;
using harness::ClusterOptions;

constexpr uint32_t kMany = 48;

class Reconnect : public harness::ClusterFixture {
 protected:
  void Start(ClusterOptions options) {
    options.shards = 2;
    options.max_connections = kMany;
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(std::move(options)));
  }

  uint32_t Connections() {
    const auto service = cluster_->GetService();
    return service.ok() ? service->service().connection_count() : ~0u;
  }

  // By default there are queue pairs for connections that follow at once. Where queue pairs have a
  // time-wait, these are the last for a while.
  void ComeAndGo() {
    const int rounds = verbs::testing::FabricUnderTest().device == "soft" ? 4 : 2;
    for (int round = 0; round < rounds; ++round) {
      SCOPED_TRACE(round);
      harness::PeerOptions options;
      options.connections = kMany;
      auto peer = cluster_->StartPeer(options);
      ASSERT_OK(peer);
      EXPECT_EQ(Connections(), kMany);
      if (round % 2 == 0) {
        harness::ExpectNothingLost(**peer);
      } else {
        ASSERT_OK((*peer)->Settle());
      }
      peer->reset();  // kills it, if it has not ended
      ASSERT_OK(
          harness::WaitUntil("all connections to be gone", [&] { return Connections() == 0; }));
    }
  }
};

TEST_F(Reconnect, shouldTakeAllConnectionsOfABrokeredServiceAgain) {
  ASSERT_NO_FATAL_FAILURE(Start(ClusterOptions()));
  const auto worker = cluster_->StartLedger(1);
  ASSERT_OK(worker);
  ASSERT_NO_FATAL_FAILURE(ComeAndGo());
}

TEST_F(Reconnect, shouldTakeAllConnectionsOfANativeServiceAgain) {
  ClusterOptions options;
  options.native_object = options.binaries.Find("ledger-v1.so").value();
  ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
  ASSERT_OK(cluster_->WaitUntilListening());
  ASSERT_NO_FATAL_FAILURE(ComeAndGo());
}

class ReconnectOverDeaths : public Reconnect {
 protected:
  void SetUp() override {
    ClusterOptions options;
    options.native_object = options.binaries.Find("ledger-v1.so").value();
    options.batond_arguments = {"--native-workers", "3"};
    options.shards = 2;
    // Each shard has 8 queue pairs. Where they have a time-wait, each has enough for the peers of
    // that time.
    options.max_connections = verbs::testing::FabricUnderTest().device == "soft" ? 8 : 24;
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(std::move(options)));
    ASSERT_OK(cluster_->WaitUntilListening());
  }
  // Kills the owner of a shard, once an heir is ready.
  void KillOwner() {
    pid_t owner = 0;
    ASSERT_OK(harness::WaitUntil("an owner and its heir", [&] {
      const auto service = cluster_->GetService();
      if (!service.ok()) return false;
      int ready = 0;
      owner = 0;
      for (const v1::Worker& worker : service->workers()) {
        if (worker.state() != v1::WORKER_STATE_READY) continue;
        ++ready;
        if (worker.shards_size() > 0) owner = static_cast<pid_t>(worker.pid());
      }
      // The one that was killed last may be told as the owner still.
      return ready >= 2 && owner != 0 && kill(owner, SIGKILL) == 0;
    }));
  }
};

// An owner dies before its peers come, while they are served, or when they have gone.
TEST_F(ReconnectOverDeaths, shouldRefuseNobodyWhereverOwnersOfAFewQueuePairsDie) {
  const uint64_t kills = harness::Setting("BATON_KILLS", 12);
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device()());
  std::printf("%llu kills, BATON_SEED=%llu\n", static_cast<unsigned long long>(kills),
              static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (uint64_t round = 0; round < kills; ++round) {
    SCOPED_TRACE(round);
    const uint64_t when = random() % 3;
    if (when == 0) ASSERT_NO_FATAL_FAILURE(KillOwner());
    harness::PeerOptions options;
    options.connections = 4;
    const auto peer = cluster_->StartPeer(options);
    ASSERT_OK(peer);
    if (when == 1) ASSERT_NO_FATAL_FAILURE(KillOwner());
    harness::ExpectNothingLost(**peer);
    if (when == 2) ASSERT_NO_FATAL_FAILURE(KillOwner());
  }
}

}  // namespace
}  // namespace baton
