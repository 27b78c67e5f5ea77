// These tests show what the guide claims of its programs.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <future>
#include <sstream>

#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "tests/worker/examples/guide/guide_fixture.h"

namespace baton::guide {
namespace {

using testing::HasSubstr;

// Where a worker dies while it deals with messages: the library's points (worker/*.cc).
const std::vector<std::string> kPoints = {"deliver-before-handler:5", "worker-state-staged:6",
                                          "worker-send-staged:7",     "commit-before-publish:8",
                                          "commit-published:9",       "deliver-after-handler:10"};

// Chapters 2, 7 and 8: state of a connection and of a shard, across kills, handoffs and a change of
// its format, and the same program as an object for native workers.
class CounterTest : public GuideTest {
 protected:
  // The messages of all clients and no other are the state of the one shard.
  void ExpectMessagesOfShard(uint64_t messages) {
    const auto client = Connect(cluster_->port());
    ASSERT_TRUE(client);
    const auto answer = client->Ask("0");
    ASSERT_OK(answer);
    EXPECT_EQ(*answer, absl::StrCat("0, message ", messages + 1, " of shard 0"));
  }
};

TEST_F(CounterTest, shouldCountEachMessageOnceWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartService("counter"));
  ASSERT_NO_FATAL_FAILURE(StartCounting(3));
  ASSERT_NO_FATAL_FAILURE(KillAt("counter-test-hooks", kPoints, *worker_));
  ASSERT_NO_FATAL_FAILURE(ExpectMessagesOfShard(StopCounting()));
}

TEST_F(CounterTest, shouldCountEachMessageOnceOverHandoffsAndKills) {
  ASSERT_NO_FATAL_FAILURE(StartService("counter"));
  ASSERT_NO_FATAL_FAILURE(StartCounting(3));
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    std::unique_ptr<GuideWorker> heir;
    ASSERT_NO_FATAL_FAILURE(StartWorker("counter", &heir));
    if (i % 2 == 0) ASSERT_OK(cluster_->Handoff(heir->id));
    ASSERT_OK(worker_->process->Kill());
    ASSERT_OK(cluster_->WaitUntilOwner(heir->id));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    worker_ = std::move(heir);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectMessagesOfShard(StopCounting()));
}

TEST_F(CounterTest, shouldDisconnectAPeerThatSendsNoNumber) {
  ASSERT_NO_FATAL_FAILURE(StartService("counter"));
  ASSERT_NO_FATAL_FAILURE(StartCounting(1));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  EXPECT_FALSE(client->Ask("x").ok());
  EXPECT_OK(client->WaitUntilDisconnected());
  ASSERT_NO_FATAL_FAILURE(ExpectMessagesOfShard(StopCounting()));  // the others, and not that one
}

TEST_F(CounterTest, shouldChangeTheFormatOfItsStateInTwoUpgrades) {
  ASSERT_NO_FATAL_FAILURE(StartService("counter"));
  ASSERT_NO_FATAL_FAILURE(StartCounting(2));
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(Upgrade("formats", {"2"}, v1::UPGRADE_PHASE_FAILED, 100, &upgrade));
  EXPECT_THAT(upgrade.detail(), HasSubstr("writes state version 2, the old one reads 1 to 1"));
  ASSERT_NO_FATAL_FAILURE(Upgrade("formats", {"1"}, v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ASSERT_NO_FATAL_FAILURE(Upgrade("formats", {"2"}, v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  // And back: what the program with the new format has written is read by the one before.
  ASSERT_NO_FATAL_FAILURE(Upgrade("formats", {"1"}, v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  StopCounting();
}

TEST_F(CounterTest, shouldCountEachMessageOnceAsAnObjectOfNativeWorkers) {
  ASSERT_NO_FATAL_FAILURE(MakeCrashPoints());
  ASSERT_NO_FATAL_FAILURE(StartNative("counter-test-hooks.so"));
  ASSERT_NO_FATAL_FAILURE(StartCounting(2));
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(KillOwner());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ASSERT_NO_FATAL_FAILURE(KillNativeAt(kPoints));
  ASSERT_NO_FATAL_FAILURE(ExpectMessagesOfShard(StopCounting()));
}

// The clients are the check: they have to find a service that does not count.
TEST_F(CounterTest, shouldBeCaughtWhenItDoesNotCount) {
  ASSERT_NO_FATAL_FAILURE(StartService("loop"));
  Counting client(cluster_->port());
  EXPECT_OK(harness::WaitUntil(
      "the client to find it", [&] { return client.failed(); }, kTimeout));
  EXPECT_EQ(client.Stop().code(), absl::StatusCode::kDataLoss);
}

// Chapter 3: memory of a heap, by connection.
class ValuesTest : public GuideTest {
 protected:
  void StartClusterWithHeap(std::vector<std::string> batond_arguments = {}) {
    batond_arguments.insert(batond_arguments.end(), {"--shard-heap-bytes", "1048576"});
    ASSERT_NO_FATAL_FAILURE(StartCluster(std::move(batond_arguments)));
  }

  // A client whose texts are numbered. Each is answered with the one before.
  struct Putting {
    void Put(int times) {
      for (int i = 0; i < times; ++i, ++texts) {
        const auto answer = client->Ask("put " + TextOf(texts));
        ASSERT_OK(answer);
        ASSERT_EQ(*answer, texts == 0 ? "nothing" : TextOf(texts - 1));
      }
    }
    static std::string TextOf(uint64_t number) {
      return absl::StrCat(number, std::string(number * 37 % 240, '.'));
    }

    std::unique_ptr<LineClient> client;
    uint64_t texts = 0;
  };

  static constexpr const char* kHeapPoints[] = {"worker-heap-allocated:5", "worker-heap-freed:6",
                                                "commit-before-publish:8", "commit-published:9"};

  // So many texts are allocated, and every byte of the heap is accounted for.
  static void ExpectTexts(LineClient& client, unsigned long long expected) {
    const auto answer = client.Ask("audit");
    ASSERT_OK(answer);
    unsigned long long allocated = 0, texts = 0, known = 0, kept = 0, held = 0, free = 0, bytes = 0;
    ASSERT_EQ(
        std::sscanf(answer->c_str(),
                    "%llu allocated, %llu of %llu texts; kept %llu held %llu free %llu of %llu",
                    &allocated, &texts, &known, &kept, &held, &free, &bytes),
        7)
        << *answer;
    EXPECT_EQ(allocated, expected) << *answer;
    EXPECT_EQ(texts, expected) << *answer;
    EXPECT_EQ(known, expected) << *answer;
    EXPECT_EQ(kept + held + free, bytes) << *answer;
  }
};

TEST_F(ValuesTest, shouldKeepEachTextWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartClusterWithHeap());
  ASSERT_NO_FATAL_FAILURE(StartWorker("values", &worker_));
  Putting one{Connect(cluster_->port())}, other{Connect(cluster_->port())};
  ASSERT_TRUE(one.client && other.client);
  for (const char* const point : kHeapPoints) {
    SCOPED_TRACE(point);
    std::unique_ptr<GuideWorker> doomed;
    ASSERT_NO_FATAL_FAILURE(StartWorker("values-test-hooks", &doomed, {}, point));
    cluster_->Handoff(doomed->id).IgnoreError();
    ASSERT_NO_FATAL_FAILURE(one.Put(20));
    ASSERT_NO_FATAL_FAILURE(other.Put(20));
    ASSERT_OK(doomed->process->WaitEnd(kTimeout));
    ASSERT_NO_FATAL_FAILURE(ExpectTexts(*one.client, 2));
  }
}

TEST_F(ValuesTest, shouldFreeTheTextOfAPeerThatGoes) {
  ASSERT_NO_FATAL_FAILURE(StartClusterWithHeap());
  ASSERT_NO_FATAL_FAILURE(StartWorker("values", &worker_));
  const auto stays = Connect(cluster_->port());
  Putting goes{Connect(cluster_->port())};
  ASSERT_TRUE(stays && goes.client);
  ASSERT_NO_FATAL_FAILURE(goes.Put(2));
  ASSERT_NO_FATAL_FAILURE(ExpectTexts(*stays, 1));
  goes.client.reset();
  EXPECT_OK(harness::WaitUntil("its text to be freed", [&] {
    const auto answer = stays->Ask("audit");
    return answer.ok() && NumberOf(*answer) == 0;
  }));
  ASSERT_NO_FATAL_FAILURE(ExpectTexts(*stays, 0));
}

// No owner hears of the end of the connection, because the only one that did died of it.
TEST_F(ValuesTest, shouldFreeWhatAConnectionLeftOfWhoseEndNoOwnerHears) {
  ASSERT_NO_FATAL_FAILURE(StartClusterWithHeap({"--poison-deaths", "1"}));
  ASSERT_NO_FATAL_FAILURE(StartWorker("values", &worker_));
  const auto stays = Connect(cluster_->port());
  Putting goes{Connect(cluster_->port())};
  ASSERT_TRUE(stays && goes.client);
  ASSERT_NO_FATAL_FAILURE(goes.Put(1));
  std::unique_ptr<GuideWorker> doomed;
  ASSERT_NO_FATAL_FAILURE(StartWorker("values-test-hooks", &doomed, {}, "worker-heap-freed:1"));
  ASSERT_OK(cluster_->Handoff(doomed->id));
  goes.client.reset();
  ASSERT_OK(doomed->process->WaitEnd(kTimeout));
  ASSERT_OK(cluster_->WaitUntilOwner(worker_->id));
  ASSERT_NO_FATAL_FAILURE(ExpectTexts(*stays, 0));
}

TEST_F(ValuesTest, shouldSendListsFromScratchMemory) {
  ASSERT_NO_FATAL_FAILURE(StartClusterWithHeap());
  ASSERT_NO_FATAL_FAILURE(StartWorker("values", &worker_));
  const auto one = Connect(cluster_->port()), other = Connect(cluster_->port());
  ASSERT_TRUE(one && other);
  ASSERT_OK(one->Ask("put red"));
  EXPECT_EQ(*one->Ask("add -hot"), "red");
  ASSERT_OK(other->Ask("put blue"));
  for (int i = 0; i < 20; ++i) {
    const auto list = one->Ask("list");
    ASSERT_OK(list);
    EXPECT_THAT(*list, testing::AnyOf("red-hot blue ", "blue red-hot "));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectTexts(*one, 2));
}

TEST_F(ValuesTest, shouldKeepEachTextAsAnObjectOfNativeWorkers) {
  ASSERT_NO_FATAL_FAILURE(MakeCrashPoints());
  ASSERT_NO_FATAL_FAILURE(StartNative("values-test-hooks.so", {"--shard-heap-bytes", "1048576"}));
  Putting one{Connect(cluster_->port())};
  ASSERT_TRUE(one.client);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(one.Put(10));
    ASSERT_NO_FATAL_FAILURE(KillOwner());
    ASSERT_NO_FATAL_FAILURE(ExpectTexts(*one.client, 1));
  }
  for (const char* const point : kHeapPoints) {
    SCOPED_TRACE(point);
    Arm(point);
    ASSERT_NO_FATAL_FAILURE(one.Put(20));
    ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
    ASSERT_NO_FATAL_FAILURE(ExpectTexts(*one.client, 1));
  }
}

TEST_F(ValuesTest, shouldServeNothingInAServiceWithoutAHeap) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<harness::ChildProcess> values;
  ASSERT_NO_FATAL_FAILURE(Spawn("values", {}, "", &values));
  const auto ended = values->WaitEnd(kTimeout);
  ASSERT_OK(ended);
  EXPECT_TRUE(WIFEXITED(*ended) && WEXITSTATUS(*ended) == 1) << *ended;
  EXPECT_THAT(values->LogTail(), HasSubstr("shard_heap_bytes"));
}

// ---- Chapters 4, 5, 6 and 9: defects, grants, connections to others, files, loops, coroutines.

const std::vector<std::string> kEffectPoints = {
    "deliver-before-handler:5", "worker-send-staged:7",     "commit-before-publish:8",
    "commit-published:9",       "deliver-after-handler:10",
};

TEST_F(GuideTest, shouldFailTheConnectionWhoseMessageKillsThreeWorkers) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::vector<std::unique_ptr<GuideWorker>> workers(4);
  for (auto& worker : workers) ASSERT_NO_FATAL_FAILURE(StartWorker("fragile", &worker));
  const auto good = Connect(cluster_->port()), bad = Connect(cluster_->port());
  ASSERT_TRUE(good && bad);
  EXPECT_FALSE(bad->Ask("crash").ok());
  const auto answer = good->Ask("still here");
  ASSERT_OK(answer);
  EXPECT_EQ(*answer, "still here");
  const auto dead = [&] {
    return std::count_if(workers.begin(), workers.end(),
                         [](const auto& worker) { return worker->process->HasEnded(); });
  };
  EXPECT_OK(harness::WaitUntil("three deaths", [&] { return dead() >= 3; }));
  EXPECT_OK(good->Ask("and still"));
  EXPECT_EQ(dead(), 3);
}

TEST_F(GuideTest, shouldKillAnOwnerThatHangs) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({"--heartbeat-ms", "50", "--hang-timeout-ms", "500", "--poison-deaths", "1"}));
  std::unique_ptr<GuideWorker> owner, heir;
  ASSERT_NO_FATAL_FAILURE(StartWorker("fragile", &owner));
  ASSERT_NO_FATAL_FAILURE(StartWorker("fragile", &heir));
  const auto good = Connect(cluster_->port()), bad = Connect(cluster_->port());
  ASSERT_TRUE(good && bad);
  EXPECT_FALSE(bad->Ask("hang").ok());
  EXPECT_OK(good->Ask("still here"));
  EXPECT_OK(owner->process->WaitEnd(kTimeout));
  EXPECT_FALSE(heir->process->HasEnded());
}

TEST_F(GuideTest, shouldGoBackFromAProgramThatCallsItselfUnhealthy) {
  ASSERT_NO_FATAL_FAILURE(StartService("fragile"));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  v1::UpgradePlan plan;
  plan.set_exec(PathOf("fragile"));
  plan.set_watch_window_ms(600'000);
  const auto started = cluster_->operators().Upgrade(kService, plan);
  ASSERT_OK(started);
  const uint64_t id = started->upgrade().id();
  ASSERT_OK(cluster_->WaitForUpgrade(
      id, "the window", [](const auto& now) { return now.phase() == v1::UPGRADE_PHASE_WATCHING; }));
  ASSERT_OK(client->Ask("sick"));
  const auto ended = cluster_->WaitUntilUpgradeEnds(id);
  ASSERT_OK(ended);
  EXPECT_EQ(ended->phase(), v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_THAT(ended->detail(), HasSubstr("unhealthy"));
  EXPECT_TRUE(cluster_->OwnsAllShards(worker_->id));
  EXPECT_OK(client->Ask("still here"));
}

TEST_F(GuideTest, shouldLetPeersReadTheBoardThatAFormerOwnerGranted) {
  ASSERT_NO_FATAL_FAILURE(StartService("board"));
  std::unique_ptr<GuideWorker> heir;
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  const auto where = client->Ask("where");
  ASSERT_OK(where);
  std::istringstream stream(*where);
  uint32_t rkey = 0;
  uint64_t address = 0;
  ASSERT_TRUE(stream >> rkey >> address) << *where;
  for (uint64_t total = 1; total <= 5; ++total) {
    const auto answer = client->Ask("1");
    ASSERT_OK(answer);
    ASSERT_OK(worker_->process->Kill());
    const auto read = client->Read(address, rkey);  // no worker lives
    ASSERT_OK(read);
    EXPECT_EQ(*read, total);
    ASSERT_NO_FATAL_FAILURE(StartWorker("board", &heir));
    EXPECT_EQ(*client->Ask("where"), *where);  // it granted nothing anew
    worker_ = std::move(heir);
  }
}

class LeaseTest : public GuideTest {
 protected:
  struct Given {
    uint32_t id = 0;
    uint32_t rkey = 0;
    uint64_t address = 0;
  };
  static Given Parse(const std::string& answer) {
    std::istringstream words(answer);
    Given given;
    EXPECT_TRUE(words >> given.id >> given.rkey >> given.address) << answer;
    return given;
  }
  // Nothing of the heap and of the grants has been lost: a peer gets nearly all of it.
  void ExpectAllFree() {
    const auto client = Connect(cluster_->port());
    ASSERT_TRUE(client);
    const auto most = client->Ask("lease 1 1000000 0");
    ASSERT_OK(most);
    EXPECT_OK(client->Ask(absl::StrCat("free ", NumberOf(*most))));
  }

  // Another lease than that of request 1, for a while. `first`: the answer to request 1.
  static void LeaseAndFree(LineClient& client, const std::string& first) {
    const auto more = client.Ask("lease 2 65536 0");
    ASSERT_OK(more);
    EXPECT_NE(Parse(*more).id, Parse(first).id);
    EXPECT_EQ(*client.Ask("lease 1 4096 0"), first);
    EXPECT_EQ(*client.Ask(absl::StrCat("free ", NumberOf(*more))), "freed");
  }

  static constexpr const char* kLeasePoints[] = {
      "worker-heap-allocated:1", "lease-granted:1",       "lease-revoked:1",
      "worker-heap-freed:1",     "worker-state-staged:1", "commit-before-publish:2",
      "commit-published:2"};
  const std::vector<std::string> kHeap = {"--shard-heap-bytes", "1048576"};
};

TEST_F(LeaseTest, shouldKeepALeaseWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(kHeap));
  ASSERT_NO_FATAL_FAILURE(StartWorker("lease", &worker_));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  const auto first = client->Ask("lease 1 4096 0");
  ASSERT_OK(first);
  const Given given = Parse(*first);
  for (const char* const point : kLeasePoints) {
    SCOPED_TRACE(point);
    std::unique_ptr<GuideWorker> doomed;
    ASSERT_NO_FATAL_FAILURE(StartWorker("lease-test-hooks", &doomed, {}, point));
    cluster_->Handoff(doomed->id).IgnoreError();
    ASSERT_NO_FATAL_FAILURE(LeaseAndFree(*client, *first));
    ASSERT_OK(doomed->process->WaitEnd(kTimeout));
    const auto read = client->Read(given.address, given.rkey);
    ASSERT_OK(read);
    EXPECT_EQ(*read, 0u);
    EXPECT_EQ(*client->Ask("lease 1 4096 0"), *first);
  }
  EXPECT_EQ(*client->Ask(absl::StrCat("free ", given.id)), "freed");
  ASSERT_NO_FATAL_FAILURE(ExpectAllFree());
  EXPECT_FALSE(client->Read(given.address, given.rkey).ok());
}

TEST_F(LeaseTest, shouldAnswerReadsWhileNoWorkerLives) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(kHeap));
  ASSERT_NO_FATAL_FAILURE(StartWorker("lease", &worker_));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  const auto answer = client->Ask("lease 1 4096 0");
  ASSERT_OK(answer);
  const Given given = Parse(*answer);
  ASSERT_OK(worker_->process->Kill());
  EXPECT_OK(client->Read(given.address + 4088, given.rkey));
}

TEST_F(LeaseTest, shouldAnswerANoticeOfWhatThePeerHasWritten) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(kHeap));
  ASSERT_NO_FATAL_FAILURE(StartWorker("lease", &worker_));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  const auto answer = client->Ask("lease 1 4096 0");
  ASSERT_OK(answer);
  const Given given = Parse(*answer);
  ASSERT_OK(client->Write(given.address, given.rkey, 42, given.id));
  EXPECT_EQ(*client->Receive(), absl::StrCat("lease ", given.id, " has 42"));
  ASSERT_OK(client->Write(given.address, given.rkey, 43, given.id + 1));
  EXPECT_EQ(*client->Receive(), "no lease of yours");
  // A notice that comes while no worker lives waits for one.
  ASSERT_OK(worker_->process->Kill());
  ASSERT_OK(client->Write(given.address, given.rkey, 44, given.id));
  std::unique_ptr<GuideWorker> heir;
  ASSERT_NO_FATAL_FAILURE(StartWorker("lease", &heir));
  EXPECT_EQ(*client->Receive(), absl::StrCat("lease ", given.id, " has 44"));
  EXPECT_EQ(*client->Ask("lease 1 4096 0"), *answer);
}

// Its owner ends it, and the peer with it, which reads after that.
TEST_F(LeaseTest, shouldEndLeasesWhoseTimeIsOver) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(kHeap));
  ASSERT_NO_FATAL_FAILURE(StartWorker("lease", &worker_));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  const auto answer = client->Ask("lease 1 4096 1");
  ASSERT_OK(answer);
  const Given given = Parse(*answer);
  EXPECT_OK(harness::WaitUntil(
      "the end of the lease", [&] { return !client->Read(given.address, given.rkey).ok(); },
      kTimeout));
  ASSERT_NO_FATAL_FAILURE(ExpectAllFree());
}

TEST_F(LeaseTest, shouldKeepLeasesAsAnObjectOfNativeWorkers) {
  std::vector<std::string> arguments = kHeap;
  ASSERT_NO_FATAL_FAILURE(MakeCrashPoints());
  ASSERT_NO_FATAL_FAILURE(StartNative("lease-test-hooks.so", std::move(arguments)));
  auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  const auto answer = client->Ask("lease 1 4096 0");
  ASSERT_OK(answer);
  const Given given = Parse(*answer);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(KillOwner());
    EXPECT_OK(client->Read(given.address, given.rkey));
    EXPECT_EQ(*client->Ask("lease 1 4096 0"), *answer);
  }
  for (const char* const point : kLeasePoints) {
    SCOPED_TRACE(point);
    Arm(point);
    ASSERT_NO_FATAL_FAILURE(LeaseAndFree(*client, *answer));
    ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
    EXPECT_OK(client->Read(given.address, given.rkey));
    EXPECT_EQ(*client->Ask("lease 1 4096 0"), *answer);
  }
  client.reset();
  EXPECT_OK(harness::WaitUntil("the lease to be freed", [&] {
    const auto other = Connect(cluster_->port());
    return other != nullptr && other->Ask("lease 1 1000000 0").ok();
  }));
}

TEST_F(GuideTest, shouldPassEachAmountOnOnceOverDeathsOnBothSides) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<GuideWorker> upstream_safe, safe;
  ASSERT_NO_FATAL_FAILURE(StartWorker("counter", &upstream_safe));
  const std::vector<std::string> upstream = {
      absl::StrCat(verbs::testing::FabricUnderTest().host, ":", cluster_->port())};
  std::unique_ptr<harness::Cluster> counter = std::move(cluster_);
  ASSERT_NO_FATAL_FAILURE(StartCluster({}, "chain"));
  ASSERT_NO_FATAL_FAILURE(StartWorker("chain", &safe, upstream));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  uint64_t sent = 0;
  const auto send_until_dead = [&](harness::ChildProcess& process) {
    ASSERT_OK(harness::WaitUntil(
        "the death",
        [&] {
          ++sent;
          const auto answer = client->Ask("1");
          EXPECT_OK(answer);
          return process.HasEnded() || !answer.ok();
        },
        kTimeout));
  };
  for (const std::string& point : kEffectPoints) {
    SCOPED_TRACE(point);
    std::unique_ptr<GuideWorker> doomed;
    ASSERT_NO_FATAL_FAILURE(StartWorker("chain-test-hooks", &doomed, upstream, point));
    cluster_->Handoff(doomed->id).IgnoreError();
    ASSERT_NO_FATAL_FAILURE(send_until_dead(*doomed->process));
    std::swap(counter, cluster_);
    ASSERT_NO_FATAL_FAILURE(StartWorker("counter-test-hooks", &doomed, {}, point));
    cluster_->Handoff(doomed->id).IgnoreError();
    std::swap(counter, cluster_);
    ASSERT_NO_FATAL_FAILURE(send_until_dead(*doomed->process));
  }
  const std::string all = absl::StrCat(sent, " of ", sent);
  EXPECT_OK(harness::WaitUntil("the other service to have counted all", [&] {
    const auto answer = client->Ask("0");
    return answer.ok() && *answer == all;
  }));
}

TEST_F(GuideTest, shouldServeItsPeersAlsoWhenTheOtherServiceEnds) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<GuideWorker> counting, chaining;
  ASSERT_NO_FATAL_FAILURE(StartWorker("counter", &counting));
  const std::string upstream =
      absl::StrCat(verbs::testing::FabricUnderTest().host, ":", cluster_->port());
  std::unique_ptr<harness::Cluster> counter = std::move(cluster_);
  ASSERT_NO_FATAL_FAILURE(StartCluster({}, "chain"));
  ASSERT_NO_FATAL_FAILURE(StartWorker("chain", &chaining, {upstream}));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  ASSERT_OK(client->Ask("5"));
  ASSERT_OK(harness::WaitUntil("the first amount", [&] { return *client->Ask("0") == "5 of 5"; }));
  ASSERT_OK(counter->Stop());
  counter.reset();
  ASSERT_OK(client->Ask("2"));
  EXPECT_OK(client->Ask("0"));  // it serves its own peers all the same
}

class JournalTest : public GuideTest {
 protected:
  // In the cluster's directory: these messages, each once and in their order.
  void ExpectJournal(uint64_t messages) const {
    std::ifstream file(cluster_->directory() + "/journal-0");
    std::string line;
    for (uint64_t record = 0; record < messages; ++record) {
      ASSERT_TRUE(std::getline(file, line)) << record;
      EXPECT_EQ(line.substr(0, line.find_last_not_of(' ') + 1), absl::StrCat("message ", record));
    }
    EXPECT_FALSE(std::getline(file, line)) << line;
  }
};

TEST_F(JournalTest, shouldWriteEachMessageOnceWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--outside-effects"}));
  std::unique_ptr<GuideWorker> safe;
  const std::vector<std::string> directory = {cluster_->directory()};
  ASSERT_NO_FATAL_FAILURE(StartWorker("journal", &safe, directory));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  uint64_t sent = 0;
  for (const std::string& point : kEffectPoints) {
    SCOPED_TRACE(point);
    std::unique_ptr<GuideWorker> doomed;
    ASSERT_NO_FATAL_FAILURE(StartWorker("journal-test-hooks", &doomed, directory, point));
    cluster_->Handoff(doomed->id).IgnoreError();
    for (int i = 0; i < 20; ++i, ++sent) {
      const auto answer = client->Ask(absl::StrCat("message ", sent));
      ASSERT_OK(answer);
      EXPECT_EQ(*answer, absl::StrCat("record ", sent));
    }
    ASSERT_OK(doomed->process->WaitEnd(kTimeout));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectJournal(sent));
}

// The keeper is stopped when the owner dies, so it never has the proof of that death. The next
// keeper has to find it, and only then a successor writes.
TEST_F(JournalTest, shouldWriteEachMessageOnceWhenTheKeeperDiesWithTheOwner) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--outside-effects"}));
  std::unique_ptr<GuideWorker> owner, heir;
  const std::vector<std::string> directory = {cluster_->directory()};
  ASSERT_NO_FATAL_FAILURE(StartWorker("journal", &owner, directory));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  uint64_t sent = 0;
  std::atomic<bool> stop{false};
  std::future<absl::Status> asking = std::async(std::launch::async, [&]() -> absl::Status {
    for (; !stop; ++sent) {
      const auto answer = client->Ask(absl::StrCat("message ", sent));
      if (!answer.ok()) return answer.status();
      if (*answer != absl::StrCat("record ", sent)) return absl::DataLossError(*answer);
    }
    return absl::OkStatus();
  });
  for (int i = 0; i < 5 && !HasFatalFailure(); ++i) {
    [&] {
      ASSERT_NO_FATAL_FAILURE(StartWorker("journal", &heir, directory));
      const auto service = cluster_->GetService();
      ASSERT_OK(service);
      const pid_t keeper = service->service().keeper_pid();
      ASSERT_EQ(kill(keeper, SIGSTOP), 0);
      ASSERT_OK(owner->process->Kill());
      ASSERT_EQ(kill(keeper, SIGKILL), 0);
      ASSERT_OK(cluster_->WaitUntilOwner(heir->id));
      owner = std::move(heir);
    }();
  }
  stop = true;
  ASSERT_OK(asking.get());
  ASSERT_NO_FATAL_FAILURE(ExpectJournal(sent));
}

TEST_F(GuideTest, shouldWriteNothingInAServiceWithoutOutsideEffects) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<harness::ChildProcess> journal;
  ASSERT_NO_FATAL_FAILURE(Spawn("journal", {cluster_->directory()}, "", &journal));
  const auto ended = journal->WaitEnd(kTimeout);
  ASSERT_OK(ended);
  EXPECT_TRUE(WIFEXITED(*ended) && WEXITSTATUS(*ended) == 1) << *ended;
  EXPECT_THAT(journal->LogTail(), HasSubstr("outside_effects: true"));
}

// Chapter 9: loops that wait for more than the worker.
class LoopTest : public GuideTest {
 protected:
  // It shows that it lives also when nobody asks anything.
  void ExpectHeartbeats(const GuideWorker& of) {
    const auto beats = [&] {
      const auto service = cluster_->GetService();
      if (!service.ok()) return uint64_t{0};
      for (const v1::Worker& worker : service->workers()) {
        if (worker.id() == of.id) return worker.heartbeats();
      }
      return uint64_t{0};
    };
    const uint64_t before = beats();
    EXPECT_OK(harness::WaitUntil("heartbeats", [&] { return beats() >= before + 3; }));
  }
  static void ExpectInOrder(const GuideWorker& worker) {
    const auto ended = worker.process->WaitEnd(kTimeout);
    ASSERT_OK(ended);
    EXPECT_TRUE(WIFEXITED(*ended) && WEXITSTATUS(*ended) == 0) << *ended;
  }
  // Asks it to end by a signal, which its loop takes.
  static void ExpectEndBySignal(const GuideWorker& worker) {
    ASSERT_EQ(kill(worker.process->pid(), SIGTERM), 0);
    ASSERT_NO_FATAL_FAILURE(ExpectInOrder(worker));
  }
};

TEST_F(LoopTest, shouldServeInALoopOfItsOwnAndEndWhenAsked) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--heartbeat-ms", "200"}));
  std::unique_ptr<GuideWorker> running, sleeping, busy;
  ASSERT_NO_FATAL_FAILURE(StartWorker("loop", &running));
  ASSERT_NO_FATAL_FAILURE(StartWorker("loop", &sleeping, {"epoll"}));
  ASSERT_NO_FATAL_FAILURE(StartWorker("loop", &busy, {"busy"}));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  for (const GuideWorker* owner : {busy.get(), sleeping.get(), running.get(), sleeping.get()}) {
    ASSERT_OK(cluster_->Handoff(owner->id));
    const auto answer = client->Ask("hello");
    ASSERT_OK(answer);
    EXPECT_THAT(*answer, HasSubstr("hello at tick "));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectHeartbeats(*sleeping));
  ASSERT_NO_FATAL_FAILURE(ExpectHeartbeats(*running));
  for (const GuideWorker* worker : {busy.get(), sleeping.get()}) {
    ASSERT_OK(cluster_->operators().StopWorker(kService, worker->id));
    ASSERT_NO_FATAL_FAILURE(ExpectInOrder(*worker));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEndBySignal(*running));
}

TEST_F(LoopTest, shouldServeInALoopOfAsio) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--heartbeat-ms", "200"}));
  std::unique_ptr<GuideWorker> first, second;
  const std::string path = cluster_->directory() + "/asio.sock";
  ASSERT_NO_FATAL_FAILURE(StartWorker("asio_loop", &first, {path}));
  ASSERT_NO_FATAL_FAILURE(StartWorker("asio_loop", &second, {path + "2"}));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  for (const GuideWorker* owner : {second.get(), first.get()}) {
    ASSERT_OK(cluster_->Handoff(owner->id));
    const auto answer = client->Ask("hello");
    ASSERT_OK(answer);
    EXPECT_THAT(*answer, HasSubstr("hello at tick "));
  }
  const auto socket = ConnectUnix(path);
  ASSERT_OK(socket);
  std::array<char, 64> text = {};
  ASSERT_GT(read(socket->get(), text.data(), text.size() - 1), 0);
  EXPECT_STREQ(text.data(), "1 messages\n");
  ASSERT_NO_FATAL_FAILURE(ExpectHeartbeats(*first));
  ASSERT_NO_FATAL_FAILURE(ExpectEndBySignal(*first));
  EXPECT_OK(client->Ask("still here"));
  ASSERT_OK(cluster_->operators().StopWorker(kService, second->id));
  ASSERT_NO_FATAL_FAILURE(ExpectInOrder(*second));
}

// Chapter 5: streams. The peer checks that each message is counted once.
class StreamTest : public GuideTest {
 protected:
  void StartPouring() {
    harness::ChildOptions child;
    child.program = PathOf("pour");
    child.arguments = {absl::StrCat(verbs::testing::FabricUnderTest().host, ":", cluster_->port()),
                       "6000"};
    child.log_path = absl::StrCat(cluster_->directory(), "/pour.log");
    ASSERT_OK_AND_ASSIGN(pour_, harness::ChildProcess::Start(child));
  }
  void ExpectAllCounted() {
    const auto said = pour_->ReadLineWith("6000 messages", kTimeout);
    ASSERT_OK(said);
    EXPECT_THAT(*said, HasSubstr("all counted"));
    const auto ended = pour_->WaitEnd(kTimeout);
    ASSERT_OK(ended);
    EXPECT_EQ(*ended, 0);
  }

  const std::vector<std::string> heap_ = {"--shard-heap-bytes", "8388608"};
  std::unique_ptr<harness::ChildProcess> pour_;
};

TEST_F(StreamTest, shouldCountEachMessageOnceOverHandoffsAndKills) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(heap_));
  ASSERT_NO_FATAL_FAILURE(StartWorker("stream", &worker_));
  ASSERT_NO_FATAL_FAILURE(StartPouring());
  for (int i = 0; i < 4 || (i < 40 && !pour_->HasEnded()); ++i) {
    SCOPED_TRACE(i);
    std::unique_ptr<GuideWorker> heir;
    ASSERT_NO_FATAL_FAILURE(StartWorker("stream", &heir));
    if (i % 2 == 0) ASSERT_OK(cluster_->Handoff(heir->id));
    ASSERT_OK(worker_->process->Kill());
    ASSERT_OK(cluster_->WaitUntilOwner(heir->id));
    worker_ = std::move(heir);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAllCounted());
}

TEST_F(StreamTest, shouldCountEachMessageOnceInNativeWorkers) {
  ASSERT_NO_FATAL_FAILURE(StartNative("stream.so", heap_));
  ASSERT_NO_FATAL_FAILURE(StartPouring());
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(KillOwner());
  ASSERT_NO_FATAL_FAILURE(ExpectAllCounted());
}

// Chapter 9: conversations as coroutines. Clients count their answers, so that a message that is
// lost, or dealt with twice, shows.
TEST_F(GuideTest, shouldGoOnWithEachConversationWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartService("coroutine"));
  ASSERT_NO_FATAL_FAILURE(StartCounting(3));
  ASSERT_NO_FATAL_FAILURE(KillAt("coroutine-test-hooks", kPoints, *worker_));
  StopCounting();
}

TEST_F(GuideTest, shouldGoOnWithEachConversationOverHandoffsAndKills) {
  ASSERT_NO_FATAL_FAILURE(StartService("coroutine"));
  ASSERT_NO_FATAL_FAILURE(StartCounting(3));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    const auto answer = client->Ask(i == 0 ? "Ada" : "more");
    ASSERT_OK(answer);
    EXPECT_EQ(*answer, absl::StrCat(i + 1, " from Ada"));
    std::unique_ptr<GuideWorker> heir;
    ASSERT_NO_FATAL_FAILURE(StartWorker("coroutine", &heir));
    if (i % 2 == 0) ASSERT_OK(cluster_->Handoff(heir->id));
    ASSERT_OK(worker_->process->Kill());
    ASSERT_OK(cluster_->WaitUntilOwner(heir->id));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    worker_ = std::move(heir);
  }
  EXPECT_FALSE(client->Ask("bye").ok());
  EXPECT_OK(client->WaitUntilDisconnected());
  StopCounting();
}

TEST_F(GuideTest, shouldGoOnWithEachConversationInNativeWorkers) {
  ASSERT_NO_FATAL_FAILURE(MakeCrashPoints());
  ASSERT_NO_FATAL_FAILURE(StartNative("coroutine-test-hooks.so"));
  ASSERT_NO_FATAL_FAILURE(StartCounting(2));
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(KillOwner());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ASSERT_NO_FATAL_FAILURE(KillNativeAt(kPoints));
  StopCounting();
}

}  // namespace
}  // namespace baton::guide
