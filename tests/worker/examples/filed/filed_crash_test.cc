// Upgrades and kills filed, at named points and at random, while clients fetch its tree: every tree
// is byte-identical, and each client has one connection all the time.
// BATON_KILLS: how many owners are killed at random moments (6), and half as many upgrades;
// BATON_SEED: of these (printed).
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/harness/baton_command.h"
#include "tests/worker/examples/filed/filed_fixture.h"

namespace baton::filed {
namespace {

using examples::ExampleWorker;

// Points that every owner passes while trees are fetched.
const char* const kServingPoints[] = {
    "filed-request-taken",   "filed-transfer-begun",  "filed-advanced",
    "file-held",             "file-dropped",          "filed-answered",
    "filed-event-end",       "file-piece-read",       "file-piece-staged",
    "file-reads-submitted",  "stream-placed",         "worker-heap-allocated",
    "worker-heap-freed",     "worker-state-staged",   "deliver-before-handler",
    "deliver-after-handler", "commit-before-publish", "commit-published",
};

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// The moment of a kill, not a wait for something: any duration is right.
void PassTime(uint64_t microseconds) {
  const timespec duration = {static_cast<time_t>(microseconds / 1'000'000),
                             static_cast<long>(microseconds % 1'000'000) * 1000};
  nanosleep(&duration, nullptr);
}

class FiledCrashTest : public FiledTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(FiledTest::SetUp());
    MakeTree();
    ASSERT_NO_FATAL_FAILURE(StartCluster());
  }

  // One is the owner, and the other one succeeds it.
  void StartOwnerAndHeir() {
    ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
    ASSERT_OK(cluster_->WaitUntilOwner(worker_->id));
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &safe_));
  }
  // Returns the number of a transfer whose first bytes have come, and whose last ones have no room
  // in the client's ring.
  static uint64_t BeginGet(GetClient& client, Answers& answers, const std::string& path) {
    const uint64_t stat = client.Stat(path);
    EXPECT_EQ(answers.Await(client, stat), ReplyCode::kOk);
    const FileInfo info = answers.reply(stat).header.info;
    const uint64_t get = client.Get(path, info, 0, info.size);
    absl::Status status;
    while (status.ok() && answers.bytes(get).empty()) status = client.Turn(answers);
    EXPECT_OK(status);
    return get;
  }

  static constexpr size_t kLargeBytes = 64 << 20;
};

TEST_F(FiledCrashTest, shouldGoOnAtTheRightByteWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartLoads(2));
  for (const char* point : kServingPoints) {
    for (const int passing : {1, 5}) {
      ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, passing));
    }
  }
  ExpectNothingLost();
  ExpectNoConnections();
  ExpectHeld(0);
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
  ExpectHeld(0);
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
  ExpectHeld(0);
}

TEST_F(FiledCrashTest, shouldGoOnWhenAnOwnerDiesWhileItTakesOver) {
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartLoads(2));
  for (const char* point : {"adopt-begin", "adopt-before-commit", "adopt-committed"}) {
    ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, 1));
  }
  for (const char* point : {"release-begin", "release-published"}) {
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
  for (const char* point : {"filed-accept-begin", "stream-ring-granted", "filed-accept-end"}) {
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
  const uint64_t kills = Setting("BATON_KILLS", 6);
  const uint64_t seed = Setting("BATON_SEED", std::random_device()());
  std::printf("BATON_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kLatestUs = 300'000;
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  ASSERT_NO_FATAL_FAILURE(StartLoads(3));
  for (uint64_t i = 0; i < kills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    std::unique_ptr<ExampleWorker> next;
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = static_cast<int>(1 + i % 2)}, &next));
    PassTime(random() % kLatestUs);
    ASSERT_OK(worker_->process->Kill());
    worker_ = std::move(next);
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  for (uint64_t i = 0; i < kills / 2; ++i) {
    SCOPED_TRACE(absl::StrCat("upgrade ", i));
    PassTime(random() % kLatestUs);
    ASSERT_NO_FATAL_FAILURE(UpgradeTo(absl::StrCat("filed-v", 1 + i % 2)));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNoConnections();
  ExpectHeld(0);
}

}  // namespace
}  // namespace baton::filed
