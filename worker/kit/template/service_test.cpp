// What @NAME@ promises when its workers die or are replaced. Each test runs batond, @NAME@ and its
// peer on Baton's soft device; no RDMA hardware is needed.
#include <gtest/gtest.h>

#include <baton/testing.hpp>
#include <chrono>
#include <string>

namespace {

using baton::test_kit::Peer;
using baton::test_kit::Service;

baton::test_kit::Options AdderOptions() {
  baton::test_kit::Options options = {{WORKER, "{socket}", "{port}"}, "@NAME@"};
  options.batond = {"--shared-receive-queue-depth", "64"};
  return options;
}
const baton::test_kit::Options kOptions = AdderOptions();

void CountToFive(Peer& peer) {
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(peer.Ask("1"), std::to_string(i)) << peer.where();
}

// The messages may come to a worker together.
void CountFiveAtOnce(Peer& peer) {
  for (int i = 1; i <= 5; ++i) peer.Send("1");
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(peer.Receive(), std::to_string(i)) << peer.where();
}

TEST(Adder, CountsEachNumberOnceWhenKilledAtAnyCommit) {
  baton::test_kit::AtEachCommit(kOptions, CountToFive);
  baton::test_kit::AtEachCommit(kOptions, CountFiveAtOnce);
}

TEST(Adder, CountsEachNumberOnceWhenKilledAtRandom) {
  baton::test_kit::AtRandom(kOptions, /*kills=*/20, /*seed=*/1, CountToFive);
}

TEST(Adder, CountsWhatWasSentWhileNobodyServed) {
  Service service(kOptions);
  Peer peer(service);
  service.KillOwnerAfter(std::chrono::microseconds(0));
  CountFiveAtOnce(peer);
}

TEST(Adder, CountsEachNumberOnceOverUpgradesAndKills) {
  Service service(kOptions);
  Peer peer(service);
  for (int i = 1; i <= 6; i += 3) {
    peer.Send("1");
    service.Upgrade();  // to the program that is here; {"/path/of/another", ...}: to that
    EXPECT_EQ(peer.Receive(), std::to_string(i));
    EXPECT_EQ(peer.Ask("1"), std::to_string(i + 1));
    service.KillOwner();
    EXPECT_EQ(peer.Ask("1"), std::to_string(i + 2));
  }
  EXPECT_FALSE(service.Crashed());
}

// The same source, without the hop through another process.
TEST(Adder, CountsEachNumberOnceInNativeWorkers) {
  baton::test_kit::Options native = kOptions;
  native.worker.front() = OBJECT;
  native.native = true;
  baton::test_kit::AtRandom(native, /*kills=*/10, /*seed=*/1, CountToFive);
}

TEST(Adder, GoesOnWithItsConnectionsInANewProcess) {
  Service service(kOptions);
  Peer peer(service);
  EXPECT_EQ(peer.Ask("1"), "1");
  service.HandOff();
  EXPECT_EQ(peer.Ask("1"), "2");
}

}  // namespace
