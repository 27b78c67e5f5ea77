// What @NAME@ promises when its workers die or are replaced. Each test runs batond, @NAME@ and its
// peer on Baton's soft device; no RDMA hardware is needed.
#include <gtest/gtest.h>

#include <baton/testing.hpp>
#include <string>

namespace {

using baton::testing::Peer;

const baton::testing::Options kOptions = {{WORKER, "{socket}", "{port}"}, "@NAME@"};

void CountToFive(Peer& peer) {
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(peer.Ask("1"), std::to_string(i));
}

TEST(Adder, CountsEachNumberOnceWhenKilledAtAnyCommit) {
  baton::testing::AtEachCommit(kOptions, CountToFive);
}

TEST(Adder, CountsEachNumberOnceWhenKilledAtRandom) {
  baton::testing::AtRandom(kOptions, /*kills=*/20, /*seed=*/1, CountToFive);
}

TEST(Adder, GoesOnWithItsConnectionsInANewProcess) {
  baton::testing::Service service(kOptions);
  Peer peer(service);
  EXPECT_EQ(peer.Ask("1"), "1");
  service.HandOff();
  EXPECT_EQ(peer.Ask("1"), "2");
}

}  // namespace
