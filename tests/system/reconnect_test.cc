// All connections of a service end at once, and as many come at once: none is refused, because
// queue pairs of former connections serve again, or rest beside as many others.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "lib/base/status.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"

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

}  // namespace
}  // namespace baton
