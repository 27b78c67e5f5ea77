// Upgrades and kills filed, brokered and native, at named points and at random, while clients fetch
// its tree: every tree is byte-identical, and each client has one connection all the time. At the
// end the heaps are empty.
// BATON_KILLS: how many owners are killed at random moments (6), and a third as many upgrades, up
// to 10; BATON_SEED: of these (printed).
#include <sys/types.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/setting.h"
#include "tests/worker/examples/filed/filed_fixture.h"

namespace baton::filed {
namespace {

// Points that every owner passes while trees are fetched.
const char* const kServingPoints[] = {
    "filed-request-taken",    "filed-transfer-begun",
    "filed-advanced",         "file-held",
    "file-dropped",           "filed-answered",
    "filed-event-end",        "file-piece-read",
    "file-piece-staged",      "file-reads-submitted",
    "stream-placed",          "worker-heap-allocated",
    "worker-heap-freed",      "worker-state-staged",
    "deliver-before-handler", "deliver-after-handler",
    "commit-before-publish",  "commit-published",
};

const char* const kAdoptionPoints[] = {"adopt-begin", "adopt-before-commit", "adopt-committed"};
const char* const kReleasePoints[] = {"release-begin", "release-published"};
const char* const kAcceptPoints[] = {"filed-accept-begin", "stream-ring-granted",
                                     "filed-accept-end"};

class FiledDeathTest : public FiledTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(FiledTest::SetUp());
    MakeTree();
  }

  RandomKills BeginKills() {
    const uint64_t seed = harness::Setting("BATON_SEED", std::random_device()());
    std::printf("%llu kills, BATON_SEED=%llu\n", static_cast<unsigned long long>(kills_),
                static_cast<unsigned long long>(seed));
    random_.seed(seed);
    // A kill may come anywhere in a fetch of the tree.
    EXPECT_OK(harness::WaitUntil(
        "a whole tree",
        [this] { return loads_[0]->failed() || loads_[0]->answers_of_round() != 0; },
        examples::kTimeout));
    RandomKills plan;
    plan.kills = kills_;
    plan.latest_us = kLatestUs;
    plan.period = std::max<uint64_t>(loads_[0]->answers_of_round(), kParts);
    return plan;
  }
  void UpgradeAtRandom(const std::string& suffix) {
    for (uint64_t i = 0; i < std::min<uint64_t>(kills_ / 3, 10); ++i) {
      SCOPED_TRACE(absl::StrCat("upgrade ", i));
      examples::PassTime(random_() % kLatestUs);
      ASSERT_NO_FATAL_FAILURE(UpgradeTo(absl::StrCat("filed-v", 1 + (i + 1) % 2, suffix)));
      ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    }
  }

  // Clients lose nothing, and neither files nor memory are held for them when they are gone: in
  // what is committed of each heap, every byte is free.
  void ExpectNothingLeft() {
    ExpectNothingLost();
    ExpectNoConnections();
    ExpectHeld(0);
    const auto status = cluster_->operators().GetStatus();
    ASSERT_OK(status);
    const std::string driver = absl::StrCat(status->services(0).driver_pid());
    // Allocations, bytes kept, free, and in the largest free range.
    const auto empty = ::testing::AllOf(::testing::ContainsRegex("\n +0 +0 +0B +16MiB +16MiB "),
                                        ::testing::ContainsRegex("\n +1 +0 +0B +16MiB +16MiB "));
    std::string found;
    EXPECT_OK(harness::WaitUntil(
        "the heaps to be empty",
        [&] {
          found = harness::RunBaton(*cluster_, {"inspect", "filed", "--pid", driver}).out;
          return ::testing::Value(found, empty);
        },
        examples::kTimeout));
    EXPECT_THAT(found, empty);
  }

  static constexpr uint64_t kLatestUs = 200'000;
  const uint64_t kills_ = harness::Setting("BATON_KILLS", 6);
  std::mt19937_64 random_;
};

class FiledCrashTest : public FiledDeathTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(FiledDeathTest::SetUp());
    // Some completions may be there at three deaths that they have nothing to do with.
    std::vector<std::string> arguments = EnoughOfAll();
    arguments.insert(arguments.end(), {"--poison-deaths", "1000"});
    ASSERT_NO_FATAL_FAILURE(StartCluster(std::move(arguments)));
  }

  // One is the owner, and the other one succeeds it.
  void StartOwnerAndHeir() {
    ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
    ASSERT_OK(cluster_->WaitUntilOwner(worker_->id));
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &safe_));
  }
  static FileInfo InfoOf(GetClient& client, Answers& answers, const std::string& path) {
    const uint64_t stat = client.Stat(path);
    EXPECT_EQ(answers.Await(client, stat), ReplyCode::kOk);
    return answers.reply(stat).header.info;
  }

  // Returns the number of a transfer whose first bytes have come, and whose last ones have no room
  // in the client's ring.
  static uint64_t BeginGet(GetClient& client, Answers& answers, const std::string& path) {
    const FileInfo info = InfoOf(client, answers, path);
    const uint64_t get = client.Get(path, info, 0, info.size);
    absl::Status status;
    while (status.ok() && answers.bytes(get).empty() && !answers.IsAnswered(get)) {
      status = client.Turn(answers);
    }
    EXPECT_OK(status);
    return get;
  }

  // Returns once there is a keeper that is not `*keeper`, which is its pid then.
  void AwaitKeeper(pid_t* keeper) {
    pid_t found = 0;
    ASSERT_OK(harness::WaitUntil(
        "a keeper",
        [&] {
          const auto status = cluster_->operators().GetStatus();
          if (status.ok()) found = static_cast<pid_t>(status->services(0).keeper_pid());
          return found > 0 && found != *keeper;
        },
        examples::kTimeout));
    *keeper = found;
  }
  void StopKeeper(pid_t* keeper) {
    ASSERT_NO_FATAL_FAILURE(AwaitKeeper(keeper));
    ASSERT_EQ(kill(*keeper, SIGSTOP), 0);
  }

  // `other` asks 20 times, while `client` waits.
  void ExpectAnswersMeanwhile(GetClient& client, Answers& answers, GetClient& other,
                              Answers& others, const std::string& path) {
    for (int i = 0; i < 20; ++i) {
      const uint64_t asked = other.Stat(path);
      while (!others.IsAnswered(asked)) {
        ASSERT_OK(client.Turn(answers));
        ASSERT_OK(other.Turn(others));
      }
    }
  }

  static constexpr size_t kLargeBytes = 16 << 20;  // four times the ring of a client
};

TEST_F(FiledCrashTest, shouldGoOnAtTheRightByteWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(2));
  for (const char* point : kServingPoints) {
    for (const int passing : {1, 5}) {
      ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, passing));
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectNothingLeft());
}

TEST_F(FiledCrashTest, shouldFinishAFileThatIsDeletedBeforeItsOwnerDies) {
  WriteFile(Served("deleted"), kLargeBytes, 7);
  const std::string content = harness::ReadFile(Served("deleted"));
  ASSERT_NO_FATAL_FAILURE(StartOwnerAndHeir());
  const std::unique_ptr<GetClient> client = Connect();
  ASSERT_NE(client, nullptr);
  Answers answers;
  const uint64_t get = BeginGet(*client, answers, "deleted");
  ASSERT_TRUE(std::filesystem::remove(Served("deleted")));
  ASSERT_OK(worker_->process->Kill());
  EXPECT_FALSE(answers.IsAnswered(get));
  EXPECT_EQ(answers.Await(*client, get), ReplyCode::kOk);
  EXPECT_TRUE(answers.bytes(get) == content);
  ExpectHeld(0, {{client.get(), &answers}});
}

TEST_F(FiledCrashTest, shouldFindAFileByItsPathWhereAQuotaRefusesToHoldIt) {
  WriteFile(Served("held"), kLargeBytes, 8);
  WriteFile(Served("refused"), kLargeBytes, 9);
  const std::string policy = temporary_->File("policy");
  std::ofstream(policy) << "service { descriptors: 1 }";
  const harness::CommandResult set =
      harness::RunBaton(*cluster_, {"service", "policy", "filed", "--set", policy});
  ASSERT_EQ(set.status, 0) << set.out << set.err;
  ASSERT_NO_FATAL_FAILURE(StartOwnerAndHeir());
  const std::unique_ptr<GetClient> client = Connect(), other = Connect();
  ASSERT_TRUE(client != nullptr && other != nullptr);
  Answers answers, others;
  const uint64_t held = BeginGet(*client, answers, "held");
  const uint64_t refused = BeginGet(*other, others, "refused");
  ExpectHeld(1);
  ASSERT_OK(worker_->process->Kill());
  while (!answers.IsAnswered(held) || !others.IsAnswered(refused)) {
    ASSERT_OK(client->Turn(answers));
    ASSERT_OK(other->Turn(others));
  }
  EXPECT_TRUE(answers.bytes(held) == harness::ReadFile(Served("held")));
  EXPECT_TRUE(others.bytes(refused) == harness::ReadFile(Served("refused")));
  ExpectHeld(0, {{client.get(), &answers}, {other.get(), &others}});
}

// A worker that waited for the keeper would give up only after 10 s, and then send the file first.
TEST_F(FiledCrashTest, shouldAnswerOthersWhileAFileWaitsForAKeeperThatHangs) {
  WriteFile(Served("waiting"), kLargeBytes, 10);
  ASSERT_NO_FATAL_FAILURE(StartOwnerAndHeir());
  const std::unique_ptr<GetClient> client = Connect(), other = Connect();
  ASSERT_TRUE(client != nullptr && other != nullptr);
  Answers answers, others;
  const uint64_t first = BeginGet(*client, answers, "waiting");
  ASSERT_EQ(answers.Await(*client, first), ReplyCode::kOk);
  ExpectHeld(0, {{client.get(), &answers}});
  const FileInfo info = InfoOf(*client, answers, "waiting");

  pid_t keeper = 0;
  ASSERT_NO_FATAL_FAILURE(StopKeeper(&keeper));
  const uint64_t get = client->Get("waiting", info, 0, info.size);
  ASSERT_NO_FATAL_FAILURE(ExpectAnswersMeanwhile(*client, answers, *other, others, "waiting"));
  EXPECT_TRUE(answers.bytes(get).empty());
  ASSERT_EQ(kill(keeper, SIGCONT), 0);
  EXPECT_EQ(answers.Await(*client, get), ReplyCode::kOk);
  ExpectHeld(0, {{client.get(), &answers}, {other.get(), &others}});
}

// The driver holds the file, and gives it to the heir once there is a keeper to ask. A service with
// outside effects moves after a release only: a keeper proves deaths.
TEST_F(FiledCrashTest, shouldFinishADeletedFileWhoseOwnerGoesWhileTheKeeperHangs) {
  WriteFile(Served("deleted"), kLargeBytes, 11);
  const std::string content = harness::ReadFile(Served("deleted"));
  ASSERT_NO_FATAL_FAILURE(StartOwnerAndHeir());
  const std::unique_ptr<GetClient> client = Connect(), other = Connect();
  ASSERT_TRUE(client != nullptr && other != nullptr);
  Answers answers, others;
  const uint64_t get = BeginGet(*client, answers, "deleted");
  ASSERT_TRUE(std::filesystem::remove(Served("deleted")));
  pid_t keeper = 0;
  ASSERT_NO_FATAL_FAILURE(StopKeeper(&keeper));
  ASSERT_OK(worker_->process->Signal(SIGTERM));
  // The heir has waited for the keeper in vain when it answers.
  ASSERT_NO_FATAL_FAILURE(ExpectAnswersMeanwhile(*client, answers, *other, others, "nothing"));
  EXPECT_FALSE(answers.IsAnswered(get));
  ASSERT_EQ(kill(keeper, SIGCONT), 0);
  EXPECT_EQ(answers.Await(*client, get), ReplyCode::kOk);
  EXPECT_TRUE(answers.bytes(get) == content);
  ExpectHeld(0, {{client.get(), &answers}, {other.get(), &others}});
}

// The worker sends a file that the keeper has not answered about, and the keeper holds it later.
TEST_F(FiledCrashTest, shouldDropAFileThatAKeeperHoldsWhenItHangsNoMore) {
  WriteFile(Served("late"), kLargeBytes, 12);
  ASSERT_NO_FATAL_FAILURE(StartOwnerAndHeir());
  const std::unique_ptr<GetClient> client = Connect();
  ASSERT_NE(client, nullptr);
  Answers answers;
  const FileInfo info = InfoOf(*client, answers, "late");
  pid_t keeper = 0;
  ASSERT_NO_FATAL_FAILURE(StopKeeper(&keeper));
  const uint64_t get = client->Get("late", info, 0, info.size);
  EXPECT_EQ(answers.Await(*client, get), ReplyCode::kOk);
  ASSERT_EQ(kill(keeper, SIGCONT), 0);
  ExpectHeld(0, {{client.get(), &answers}});
}

TEST_F(FiledCrashTest, shouldSendAndDropEveryFileWhileKeepersDie) {
  ASSERT_NO_FATAL_FAILURE(StartOwnerAndHeir());
  ASSERT_NO_FATAL_FAILURE(StartLoads(2));
  random_.seed(17);
  pid_t keeper = 0;
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(absl::StrCat("death ", i));
    ASSERT_NO_FATAL_FAILURE(AwaitKeeper(&keeper));
    // A keeper that is killed at once may not have noted that it is done with the request by which
    // it was found. The third death in it would make the next keepers refuse it.
    examples::PassTime(random_() % kLatestUs);
    ASSERT_EQ(kill(keeper, SIGKILL), 0);
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ASSERT_NO_FATAL_FAILURE(ExpectNothingLeft());
}

TEST_F(FiledCrashTest, shouldGoOnWhenAnOwnerDiesWhileItTakesOver) {
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(2));
  for (const char* point : kAdoptionPoints) {
    ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, 1));
  }
  for (const char* point : kReleasePoints) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, 1));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    (void)cluster_->Handoff(safe_->id);
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
}

TEST_F(FiledCrashTest, shouldServeAConnectionWhoseAcceptDied) {
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  for (const char* point : kAcceptPoints) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, 1));
    loads_.push_back(std::make_unique<FetchLoad>(port_, Served(), Fetched()));
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    ExpectNothingLost();
  }
  ExpectNoConnections();
}

TEST_F(FiledCrashTest, shouldGoOnAtTheRightByteOverRandomKillsAndUpgrades) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  ASSERT_NO_FATAL_FAILURE(StartLoads(3));
  ASSERT_NO_FATAL_FAILURE(KillAtRandom(BeginKills(), random_));
  ASSERT_NO_FATAL_FAILURE(UpgradeAtRandom(""));
  ASSERT_NO_FATAL_FAILURE(ExpectNothingLeft());
}

// ---------------------------------------------------------------- native workers

class NativeFiledCrashTest : public FiledDeathTest {
 protected:
  // Some worker gets all shards, and another one had some.
  void MoveShards() {
    uint64_t heir = 0;
    ASSERT_OK(harness::WaitUntil(
        "a worker that stands by", [&] { return (heir = Heir()) != 0; }, examples::kTimeout));
    // The owner may die of it.
    (void)cluster_->Handoff(heir);
  }

 private:
  // A worker that is ready and does not own shard 0, or 0.
  uint64_t Heir() {
    const auto service = cluster_->GetService();
    if (!service.ok()) return 0;
    const uint64_t owner = service->shards(0).owner_worker_id();
    for (const v1::Worker& worker : service->workers()) {
      if (worker.id() != owner && worker.state() == v1::WORKER_STATE_READY) return worker.id();
    }
    return 0;
  }
};

TEST_F(NativeFiledCrashTest, shouldGoOnAtTheRightByteWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(MakeCrashPoints());
  ASSERT_NO_FATAL_FAILURE(StartNative("filed-v1-test-hooks.so"));
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(2));
  for (const char* point : kServingPoints) {
    for (const uint32_t passing : {1, 5}) {
      ASSERT_NO_FATAL_FAILURE(ExpectProgressOverNativeDeathAt(point, passing));
    }
  }
  for (const char* point : kAdoptionPoints) {
    ASSERT_NO_FATAL_FAILURE(ExpectProgressOverNativeHeirsDeathAt(point));
  }
  for (const char* point : kReleasePoints) {
    SCOPED_TRACE(point);
    crash_points_->Arm(point, 1);
    ASSERT_NO_FATAL_FAILURE(MoveShards());
    ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
  }
  for (const char* point : kAcceptPoints) {
    SCOPED_TRACE(point);
    crash_points_->Arm(point, 1);
    ASSERT_NO_FATAL_FAILURE(StartLoads(1));
    ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
  }
  ASSERT_NO_FATAL_FAILURE(ExpectNothingLeft());
}

TEST_F(NativeFiledCrashTest, shouldGoOnAtTheRightByteOverRandomKillsAndUpgrades) {
  ASSERT_NO_FATAL_FAILURE(StartNative("filed-v1.so", kills_ > 100 ? 24 : 8));
  ASSERT_NO_FATAL_FAILURE(StartLoads(3));
  ASSERT_NO_FATAL_FAILURE(KillNativeAtRandom(BeginKills(), /*shards=*/2, random_));
  ASSERT_NO_FATAL_FAILURE(UpgradeAtRandom(".so"));
  ASSERT_NO_FATAL_FAILURE(ExpectNothingLeft());
}

}  // namespace
}  // namespace baton::filed
