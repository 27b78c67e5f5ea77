// Hot standbys as the keeper keeps them, without a control: with real processes as workers.
#include "supervisor/keeper/upgrades/standbys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Options = std::vector<std::string>;
constexpr uint32_t kLongMs = 60'000;

class StandbysTest : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = harness::Binaries().Find("upgrade_worker").value();
    keeper_.SetLauncher(harness::Binaries().Find("baton-launch").value());
  }

  void TearDown() override {
    if (!HasFailure()) return;
    for (const v1::Event& event : keeper_.Events()) {
      std::cerr << event.kind() << ": " << event.message() << std::endl;
    }
  }

  void StartKeeper(const std::string& policy, const KeeperThread::Change& change = nullptr) {
    ASSERT_EQ(keeper_.Start([&](v1::ServiceConfig* service) {
      *service->mutable_policy() = Policy(policy);
      service->set_shards(3);
      service->set_max_workers(6);
      service->set_heartbeat_ms(20);
      service->set_ready_timeout_ms(kLongMs);
      service->set_watch_window_ms(200);
      service->set_stop_timeout_ms(20'000);
      if (change) change(service);
    }),
              absl::OkStatus());
  }
  static v1::Policy Policy(const std::string& text) {
    v1::Policy policy;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &policy));
    return policy;
  }
  void SetPolicy(const std::string& text) {
    internal::ManagementRequest request;
    *request.mutable_set_policy()->mutable_policy() = Policy(text);
    ASSERT_EQ(keeper_.Ask(std::move(request)).status(), absl::OkStatus());
  }

  // Starts a worker as an operator would, or his service manager. It is ready when it is returned.
  std::unique_ptr<harness::ChildProcess> StartWorker(const Options& options) {
    harness::ChildOptions child;
    child.program = program_;
    child.arguments = {"--socket", keeper_.socket()};
    child.arguments.insert(child.arguments.end(), options.begin(), options.end());
    auto started = harness::ChildProcess::Start(child);
    EXPECT_TRUE(started.ok()) << started.status();
    if (!started.ok()) return nullptr;
    Await("a worker to be ready", [&] {
      const auto workers = keeper_.Describe().workers();
      return std::any_of(workers.begin(), workers.end(), [&](const v1::Worker& worker) {
        return worker.pid() == (*started)->pid() && worker.state() == v1::WORKER_STATE_READY;
      });
    });
    return *std::move(started);
  }
  std::unique_ptr<harness::ChildProcess> StartOwner(const Options& options) {
    auto owner = StartWorker(options);
    Await("it to own all shards", [&] { return owner && Pids(Owners()) == Pids(owner->pid()); });
    return owner;
  }

  void Upgrade(const std::string& version, uint32_t watch_window_ms = 0,
               const Options& options = {}) {
    internal::ManagementRequest request;
    v1::UpgradePlan* plan = request.mutable_upgrade();
    plan->set_exec(program_);
    plan->set_replace_arguments(true);
    for (const std::string& argument :
         {std::string("--socket"), keeper_.socket(), std::string("--program-version"), version}) {
      plan->add_arguments(argument);
    }
    for (const std::string& option : options) plan->add_arguments(option);
    plan->set_watch_window_ms(watch_window_ms);
    ASSERT_EQ(keeper_.Ask(std::move(request)).status(), absl::OkStatus());
  }
  v1::Upgrade Newest() {
    internal::ManagementRequest request;
    request.mutable_list_upgrades();
    return keeper_.Ask(std::move(request))->upgrades(0);
  }
  v1::Upgrade AwaitPhase(v1::UpgradePhase phase) {
    v1::Upgrade upgrade;
    Await(v1::UpgradePhase_Name(phase), [&] {
      upgrade = Newest();
      return upgrade.phase() == phase || upgrade.ended_unix_micros() != 0;
    });
    EXPECT_EQ(upgrade.phase(), phase) << upgrade.DebugString();
    return upgrade;
  }

  std::vector<v1::Worker> Owners() { return Workers(/*owners=*/true); }
  // Returns the workers that are ready and own no shard.
  std::vector<v1::Worker> Standing() { return Workers(/*owners=*/false); }
  std::vector<v1::Worker> Workers(bool owners) {
    std::vector<v1::Worker> workers;
    const internal::Description description = keeper_.Describe();
    for (const v1::Worker& worker : description.workers()) {
      if (worker.state() != v1::WORKER_STATE_READY) continue;
      if (worker.shards().empty() != owners) workers.push_back(worker);
    }
    return workers;
  }
  static std::vector<pid_t> Pids(const std::vector<v1::Worker>& workers) {
    std::vector<pid_t> pids;
    for (const v1::Worker& worker : workers) pids.push_back(worker.pid());
    return pids;
  }
  static std::vector<pid_t> Pids(pid_t pid) { return {pid}; }
  // Beside `dead`, who may be listed until his process is gone.
  v1::Worker AwaitStandby(uint64_t dead = 0) {
    std::vector<v1::Worker> standing;
    Await("one standby", [&] {
      standing = Standing();
      std::erase_if(standing, [&](const v1::Worker& worker) { return worker.id() == dead; });
      return standing.size() == 1;
    });
    return standing.empty() ? v1::Worker() : standing.front();
  }

  std::vector<std::string> Told(const std::string& kind) {
    std::vector<std::string> messages;
    for (const v1::Event& event : keeper_.Events()) {
      if (event.kind() == kind) messages.push_back(event.message());
    }
    return messages;
  }
  bool WasTold(const std::string& kind, const std::string& words) {
    const std::vector<std::string> told = Told(kind);
    return std::any_of(told.begin(), told.end(), [&](const std::string& message) {
      return message.find(words) != std::string::npos;
    });
  }
  static void Await(const std::string& what, const std::function<bool()>& condition) {
    EXPECT_EQ(harness::WaitUntil(what, condition, std::chrono::seconds(40)), absl::OkStatus());
  }

  KeeperThread keeper_;
  std::string program_;
};

TEST_F(StandbysTest, shouldStartThoseThatAreMissingOneAfterTheOther) {
  StartKeeper("hot_standbys: 2");
  const auto owner = StartOwner({"--program-version", "7"});
  Await("two standbys", [&] { return Standing().size() == 2; });
  for (const v1::Worker& standby : Standing()) EXPECT_EQ(standby.version(), "7");
  EXPECT_EQ(Pids(Owners()), Pids(owner->pid()));
  std::vector<std::string> order;
  for (const v1::Event& event : keeper_.Events()) {
    if (event.kind() == "standby_started" || event.kind() == "worker_ready") {
      order.push_back(event.kind());
    }
  }
  EXPECT_THAT(order, ElementsAre("worker_ready", "standby_started", "worker_ready",
                                 "standby_started", "worker_ready"));
  EXPECT_THAT(keeper_.Describe().service().accounts().warnings(), IsEmpty());
}

TEST_F(StandbysTest, shouldStartAnotherWhenOneTakesOver) {
  StartKeeper("hot_standbys: 1");
  const auto owner = StartOwner({});
  const uint64_t first = Owners()[0].id();
  const v1::Worker heir = AwaitStandby();
  ASSERT_EQ(owner->Kill(), absl::OkStatus());
  Await("the heir to own all shards", [&] { return Pids(Owners()) == Pids(heir.pid()); });
  const v1::Worker next = AwaitStandby(first);
  EXPECT_NE(next.id(), heir.id());
  // It was started by the keeper as the next one was, and dies as an owner.
  ASSERT_EQ(kill(heir.pid(), SIGKILL), 0);
  Await("the next to own all shards", [&] { return Pids(Owners()) == Pids(next.pid()); });
  AwaitStandby(heir.id());
  EXPECT_THAT(Told("standby_started"), SizeIs(3));
  EXPECT_THAT(Told("standby_failed"), IsEmpty());
}

TEST_F(StandbysTest, shouldStartAnotherWhenOneDiesAndSayHow) {
  StartKeeper("hot_standbys: 1");
  const auto owner = StartOwner({});
  const v1::Worker standby = AwaitStandby();
  ASSERT_EQ(kill(standby.pid(), SIGKILL), 0);
  Await("another", [&] {
    const std::vector<v1::Worker> standing = Standing();
    return standing.size() == 1 && standing[0].id() != standby.id();
  });
  ASSERT_THAT(Told("standby_failed"), SizeIs(1));
  EXPECT_THAT(Told("standby_failed")[0], HasSubstr("was killed by signal 9"));
  EXPECT_EQ(Pids(Owners()), Pids(owner->pid()));
}

TEST_F(StandbysTest, shouldWaitLongerAfterEachFailureUpToWhatThePolicySays) {
  StartKeeper("restart { first_delay_ms: 5 max_delay_ms: 20 }");
  const std::string fault = keeper_.directory().File("fault");
  const auto owner = StartOwner({"--fault", "exit", "--fault-file", fault});
  std::ofstream(fault) << "yes";
  SetPolicy("hot_standbys: 1 restart { first_delay_ms: 5 max_delay_ms: 20 }");
  Await("the first wait", [&] { return WasTold("standby_failed", "started in 5 ms"); });
  EXPECT_TRUE(WasTold("standby_failed", "ended with status 3"));
  Await("the longest wait", [&] { return WasTold("standby_failed", "started in 20 ms"); });
  std::filesystem::remove(fault);
  AwaitStandby();
  EXPECT_FALSE(WasTold("standby_failed", "started in 40 ms"));
}

TEST_F(StandbysTest, shouldEndOneThatIsNotReadyInTime) {
  StartKeeper("", [](v1::ServiceConfig* service) {
    service->set_ready_timeout_ms(1500);
    service->set_stop_timeout_ms(100);
  });
  const std::string fault = keeper_.directory().File("fault");
  const auto owner = StartOwner({"--fault", "never-ready", "--fault-file", fault});
  std::ofstream(fault) << "yes";
  SetPolicy("hot_standbys: 1");
  Await("its time to be over", [&] { return WasTold("standby_failed", "is not ready"); });
  std::filesystem::remove(fault);
  AwaitStandby();
}

TEST_F(StandbysTest, shouldSayWhyNoneCanBeStartedAndTryAgain) {
  const std::string installed = keeper_.directory().File("worker");
  std::filesystem::copy_file(program_, installed);
  program_ = installed;
  StartKeeper("");
  const auto owner = StartOwner({});
  std::filesystem::remove(installed);
  SetPolicy("hot_standbys: 1");
  Await("the reason", [&] { return WasTold("standby_failed", "baton upgrade --exec"); });
  EXPECT_EQ(keeper_.Describe().service().accounts().warnings_size(), 1);
  // The cure.
  program_ = harness::Binaries().Find("upgrade_worker").value();
  Upgrade("2");
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(AwaitStandby().version(), "2");
}

// ---- Upgrades.

TEST_F(StandbysTest, shouldStandByWithTheNewProgramAfterAnUpgrade) {
  StartKeeper("hot_standbys: 1");
  const auto first = StartOwner({"--program-version", "1"});
  AwaitStandby();
  for (const std::string version : {"2", "3"}) {
    SCOPED_TRACE(version);
    Upgrade(version);
    EXPECT_EQ(AwaitPhase(v1::UPGRADE_PHASE_COMPLETED).new_worker_ids_size(), 2);
    EXPECT_EQ(AwaitStandby().version(), version);
    ASSERT_THAT(Owners(), SizeIs(1));
    EXPECT_EQ(Owners()[0].version(), version);
    Await("the others' ends", [&] { return keeper_.Describe().workers_size() == 2; });
  }
  EXPECT_THAT(Told("standby_started"), SizeIs(1));
  // It took the place of one that the keeper had started.
  SetPolicy("");
  Await("its end", [&] { return keeper_.Describe().workers_size() == 1; });
  EXPECT_THAT(Owners(), SizeIs(1));
  EXPECT_THAT(Told("standby_failed"), IsEmpty());
}

TEST_F(StandbysTest, shouldStartNoneDuringAnUpgrade) {
  StartKeeper("hot_standbys: 1");
  const auto first = StartOwner({"--program-version", "1"});
  AwaitStandby();
  Upgrade("2", kLongMs);
  const double left = AwaitPhase(v1::UPGRADE_PHASE_WATCHING).watch_seconds_left();
  SetPolicy("hot_standbys: 3");
  // It has looked several times by then.
  Await("half a second", [&] { return Newest().watch_seconds_left() < left - 0.5; });
  EXPECT_THAT(Told("standby_started"), SizeIs(1));
  internal::ManagementRequest rollback;
  rollback.mutable_rollback();
  ASSERT_EQ(keeper_.Ask(std::move(rollback)).status(), absl::OkStatus());
  AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_EQ(Pids(Owners()), Pids(first->pid()));  // and not the one who stood by
  Await("three standbys", [&] { return Standing().size() == 3; });
  for (const v1::Worker& standby : Standing()) EXPECT_EQ(standby.version(), "1");
  EXPECT_THAT(Told("standby_started"), SizeIs(3));
}

// It is not among those that the upgrade replaces.
TEST_F(StandbysTest, shouldEndOneThatIsNotReadyWhenAnUpgradeBegins) {
  StartKeeper("", [](v1::ServiceConfig* service) { service->set_stop_timeout_ms(100); });
  const std::string fault = keeper_.directory().File("fault");
  const auto first =
      StartOwner({"--program-version", "1", "--fault", "never-ready", "--fault-file", fault});
  std::ofstream(fault) << "yes";
  SetPolicy("hot_standbys: 1");
  Await("it to attach", [&] { return keeper_.Describe().workers_size() == 2; });
  Upgrade("2");
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(AwaitStandby().version(), "2");
  Await("its end", [&] {
    const auto workers = keeper_.Describe().workers();
    return std::none_of(workers.begin(), workers.end(),
                        [](const v1::Worker& worker) { return worker.version() == "1"; });
  });
  EXPECT_THAT(Told("standby_failed"), IsEmpty());
}

// ---- Too many, and too few places.

TEST_F(StandbysTest, shouldEndOnlyItsOwnWhenTheNumberIsLowered) {
  StartKeeper("hot_standbys: 1");
  const auto owner = StartOwner({});
  const v1::Worker own = AwaitStandby();
  const auto others = StartWorker({});
  SetPolicy("hot_standbys: 3");
  Await("three", [&] { return Standing().size() == 3; });
  SetPolicy("hot_standbys: 2");  // the newest goes
  Await("two", [&] { return keeper_.Describe().workers_size() == 3; });
  EXPECT_EQ(Pids(Standing()), (std::vector<pid_t>{own.pid(), others->pid()}));
  SetPolicy("");
  Await("one", [&] { return keeper_.Describe().workers_size() == 2; });
  EXPECT_EQ(Pids(Standing()), Pids(others->pid()));
  EXPECT_EQ(Pids(Owners()), Pids(owner->pid()));
  EXPECT_THAT(Told("standby_failed"), IsEmpty());
  SetPolicy("hot_standbys: 2");
  Await("two again", [&] { return Standing().size() == 2; });
}

TEST_F(StandbysTest, shouldNotEndOneThatHasComeToShards) {
  StartKeeper("hot_standbys: 1");
  const auto owner = StartOwner({});
  const v1::Worker heir = AwaitStandby();
  ASSERT_EQ(keeper_.Handoff(heir.id()), absl::OkStatus());
  const auto another = StartWorker({});
  SetPolicy("hot_standbys: 3");
  Await("a third", [&] { return Standing().size() == 3; });
  SetPolicy("");  // all but the heir may go, of those that the keeper has started
  Await("the third to be gone", [&] { return keeper_.Describe().workers_size() == 3; });
  EXPECT_EQ(Pids(Owners()), Pids(heir.pid()));
  EXPECT_THAT(Told("worker_asked_to_stop"), SizeIs(1));
}

TEST_F(StandbysTest, shouldKillOneThatDoesNotEnd) {
  StartKeeper("hot_standbys: 1",
              [](v1::ServiceConfig* service) { service->set_stop_timeout_ms(100); });
  const auto owner = StartOwner({"--deaf"});
  AwaitStandby();
  SetPolicy("");
  Await("its end", [&] { return keeper_.Describe().workers_size() == 1; });
  EXPECT_TRUE(WasTold("worker_killed", "it was asked to end 100 ms ago"));
  EXPECT_EQ(Pids(Owners()), Pids(owner->pid()));
}

TEST_F(StandbysTest, shouldStartNoMoreThanThereIsRoomForAndWarn) {
  StartKeeper("hot_standbys: 2", [](v1::ServiceConfig* service) { service->set_max_workers(3); });
  RawClient stranger(keeper_.socket());
  ASSERT_EQ(stranger.Attach(), absl::OkStatus());
  const auto owner = StartOwner({});
  AwaitStandby();
  EXPECT_THAT(keeper_.Describe().service().accounts().warnings(),
              ElementsAre("policy.hot_standbys: 1 of 2 workers are ready and own no shard"));
  ASSERT_EQ(stranger.Detach(), absl::OkStatus());
  Await("the second", [&] { return Standing().size() == 2; });
  EXPECT_THAT(Told("standby_failed"), IsEmpty());
}

// Only the upgrade knew the process of the standby that it left.
TEST_F(StandbysTest, shouldEndOneThatAnUpgradeHasLeftWhenItGivesItsShardsBack) {
  StartKeeper("hot_standbys: 1", [](v1::ServiceConfig* service) {
    service->set_ready_timeout_ms(10'000);
    service->set_stop_timeout_ms(1000);
  });
  const auto owner = StartOwner({});
  AwaitStandby();
  const std::string refuse = keeper_.directory().File("refuse");
  Upgrade("2", 0, {"--refuse-file", refuse});
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  const v1::Worker left = AwaitStandby();
  EXPECT_EQ(left.version(), "2");
  ASSERT_THAT(Owners(), SizeIs(1));
  SetPolicy("hot_standbys: 2");
  Await("another", [&] { return Standing().size() == 2; });  // so it has taken the first one over
  std::ofstream(refuse) << "now";
  ASSERT_EQ(kill(Owners()[0].pid(), SIGKILL), 0);
  const std::string name =
      "process " + std::to_string(left.pid()) + ", a standby, is ready no more";
  Await("it to be ended", [&] { return WasTold("standby_failed", name); });
  Await("it to be gone", [&] {
    const auto workers = keeper_.Describe().workers();
    return std::none_of(workers.begin(), workers.end(),
                        [&](const v1::Worker& worker) { return worker.id() == left.id(); });
  });
  std::filesystem::remove(refuse);
  Await("an owner", [&] { return Owners().size() == 1; });
}

// Otherwise it would be counted for ever, and be the heir.
TEST_F(StandbysTest, shouldEndOneThatHangsAndStartAnother) {
  StartKeeper("hot_standbys: 1", [](v1::ServiceConfig* service) {
    service->set_hang_timeout_ms(300);
    service->set_stop_timeout_ms(100);
  });
  const auto owner = StartOwner({});
  const v1::Worker hung = AwaitStandby();
  ASSERT_EQ(kill(hung.pid(), SIGSTOP), 0);
  Await("another", [&] {
    const std::vector<v1::Worker> standing = Standing();
    return standing.size() == 1 && standing[0].id() != hung.id();
  });
  EXPECT_TRUE(WasTold("standby_failed", "is ready no more"));
  EXPECT_EQ(Pids(Owners()), Pids(owner->pid()));
}

// It is asked to end, and given no shard any more: it cannot be killed while it serves.
TEST_F(StandbysTest, shouldGiveNoShardToOneThatItHasAskedToEnd) {
  StartKeeper("hot_standbys: 1");
  const auto owner = StartOwner({"--deaf"});
  const v1::Worker asked = AwaitStandby();
  SetPolicy("");
  Await("it to be asked", [&] { return !Told("worker_asked_to_stop").empty(); });
  EXPECT_EQ(keeper_.Handoff(asked.id()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(keeper_.Handoff(0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Pids(Owners()), Pids(owner->pid()));
}

// A message may kill each worker that handles it.
TEST_F(StandbysTest, shouldStartAnotherWhenOwnerAndHeirAreDead) {
  StartKeeper("hot_standbys: 1");
  const auto owner = StartOwner({});
  const v1::Worker heir = AwaitStandby();
  ASSERT_EQ(kill(heir.pid(), SIGSTOP), 0);
  ASSERT_EQ(owner->Kill(), absl::OkStatus());
  ASSERT_EQ(kill(heir.pid(), SIGKILL), 0);
  Await("another owner", [&] {
    const std::vector<v1::Worker> owners = Owners();
    return owners.size() == 1 && owners[0].id() != heir.id();
  });
  Await("a standby", [&] { return Standing().size() == 1; });
}

}  // namespace
}  // namespace baton::keeper::testing
