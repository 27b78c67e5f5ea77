// A keeper may die, hang or be replaced at any time: its driver goes on, and so do connections and
// workers. The next keeper goes on with the sessions and with what was set at run time.
//
// BATON_KEEPER_DEATHS: how often keepers die in a row where nothing may grow by it (10).

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/arena/layout.h"
#include "lib/base/check.h"
#include "lib/base/version.h"
#include "lib/channel/message_channel.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"
#include "tests/system/death_fixture.h"
#include "worker/worker.h"

namespace baton {
namespace {

using harness::Cluster;
using harness::ClusterOptions;
using harness::PeerOptions;
using ::testing::HasSubstr;
using ::testing::Not;

// The first deaths fill what is bounded, such as logs of events.
constexpr int kDeathsBeforeMemoryCounts = 20;

// A worker that never is ready, and so owns nothing.
class Bystander : public baton::Service {
 public:
  void OnCompletion(Shard&, const Completion&) override {}
};

// Returns true if the keeper's thread waits for its driver to answer an order. Otherwise it waits
// in epoll_wait(2).
bool WaitsForAnAnswer(pid_t keeper) {
  return harness::ReadFile(absl::StrCat("/proc/", keeper, "/syscall"))
      .starts_with(absl::StrCat(SYS_poll, " "));
}

class KeeperDeath : public death::DeathTest {
 protected:
  void Start(const ClusterOptions& options = ClusterOptions()) {
    ASSERT_NO_FATAL_FAILURE(DeathTest::Start(options));
    driver_ = Service().driver_pid();
  }
  void StartLoad() {
    ASSERT_NO_FATAL_FAILURE(DeathTest::StartLoad());
    driver_ = Service().driver_pid();
  }

  // Ends the keeper with `signal`, and returns when another serves.
  void Replace(int signal = SIGKILL) {
    const pid_t keeper = Service().keeper_pid();
    ASSERT_EQ(kill(keeper, signal), 0);
    AwaitAnother(keeper);
  }
  void AwaitAnother(pid_t keeper) {
    ASSERT_OK(harness::WaitUntil("another keeper", [&] {
      const auto status = cluster_->operators().GetStatus();
      return status.ok() && status->services(0).reachable() &&
             status->services(0).keeper_pid() != keeper;
    }));
    EXPECT_EQ(Service().driver_pid(), driver_);
  }
  static ClusterOptions SharedReceives() {
    ClusterOptions options;
    options.batond_arguments = {"--shared-receive-queue-depth", "64"};
    return options;
  }
  // Ends the keeper, or only stops it until EndForGood.
  void EndOrStop(pid_t keeper, bool stop) {
    ASSERT_EQ(kill(keeper, stop ? SIGSTOP : SIGKILL), 0);
    stopped_keeper_ = stop ? keeper : 0;
  }
  void EndForGood() {
    if (const pid_t keeper = std::exchange(stopped_keeper_, 0)) {
      ASSERT_EQ(kill(keeper, SIGKILL), 0);
    }
  }
  // Keepers die, and with each the owner. Its successor takes over, and a peer that came before
  // leaves, while no keeper runs or while the next one takes over.
  void DieWithOwners() {
    auto standby = cluster_->StartLedger(2);
    ASSERT_OK(standby);
    for (int i = 0; i < 3; ++i) {
      auto guest = cluster_->StartPeer(PeerOptions());
      ASSERT_OK(guest);
      const pid_t keeper = Service().keeper_pid();
      ASSERT_NO_FATAL_FAILURE(EndOrStop(keeper, i % 2 == 0));
      ASSERT_OK(owner_->process->Kill());
      ASSERT_OK(peer_->Settle());
      harness::ExpectNothingLost(**guest);
      ASSERT_NO_FATAL_FAILURE(EndForGood());
      ASSERT_NO_FATAL_FAILURE(AwaitAnother(keeper));
      ASSERT_OK(cluster_->WaitUntilGone(owner_->id));
      EXPECT_TRUE(cluster_->OwnsAllShards((*standby)->id));
      owner_ = *std::move(standby);
      standby = cluster_->StartLedger(1 + i % 2);
      ASSERT_OK(standby);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectThePeersConnectionsAlone());
    harness::ExpectNothingLost(*peer_);
  }
  void ExpectThePeersConnectionsAlone() {
    EXPECT_OK(harness::WaitUntil("connections of peers that left to be gone", [this] {
      return Service().connection_count() == harness::SteadyLoad().connections;
    }));
  }
  // Keepers die in a row. `look` is called when each is followed.
  void DieInARow(const std::function<void()>& look) {
    ASSERT_NO_FATAL_FAILURE(Replace());
    death::Possessions before(LongLived());
    std::optional<death::Possessions> early;
    const int deaths = Deaths();
    for (int i = 1; i <= deaths; ++i) {
      ASSERT_NO_FATAL_FAILURE(Replace());
      ASSERT_NO_FATAL_FAILURE(ExpectServed());
      ASSERT_NO_FATAL_FAILURE(look());
      // The driver's twin may just be replaced.
      if (i <= std::max(2, deaths / 4)) before.Join(death::Possessions(LongLived()));
      if (i == kDeathsBeforeMemoryCounts) early.emplace(LongLived());
      if (i % 10 == 0 && i < deaths) {
        // Afterwards the driver does not wait for long before it starts the next ones.
        ASSERT_OK(harness::WaitUntil("a keeper to have lived for long",
                                     [&] { return Service().uptime_seconds() > 5; }));
      }
    }
    EXPECT_OK(
        harness::WaitUntil(absl::StrCat("no more than ", absl::StrJoin(before.counts, " ")),
                           [&] { return death::Possessions(LongLived()).HasNoMoreThan(before); }));
    if (!early) return;
    const death::Possessions now(LongLived());
    std::printf("%d keepers died: %s%s; after %d of them %s\n", deaths, now.open.c_str(),
                now.memory.c_str(), kDeathsBeforeMemoryCounts, early->memory.c_str());
    EXPECT_LE(now.kilobytes, early->kilobytes + death::kGrowthKilobytes);
  }
  static internal::WorkerRequest AttachRequest() {
    internal::WorkerRequest request;
    request.mutable_attach()->set_protocol_version(kProtocolVersion);
    request.mutable_attach()->set_layout_version(arena::kLayoutVersion);
    request.mutable_attach()->set_service("ledger");
    return request;
  }
  std::string Baton(const std::vector<std::string>& arguments) {
    const harness::CommandResult result = harness::RunBaton(*cluster_, arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    return result.out + result.err;
  }

  static int Deaths() {
    const char* const deaths = std::getenv("BATON_KEEPER_DEATHS");
    return deaths == nullptr ? 10 : std::atoi(deaths);
  }
  // Returns the processes that outlive keepers.
  std::vector<pid_t> LongLived() {
    return {driver_, cluster_->batond().pid(), cluster_->batond().FindChild("baton-control")};
  }

  std::filesystem::path KeeperProgram() const {
    return cluster_->directory() + "/libexec/baton-keeper";
  }

  pid_t driver_ = 0;
  pid_t stopped_keeper_ = 0;  // 0: none is
};

TEST_F(KeeperDeath, shouldGoUnnoticedByPeersAndWorkers) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(DieInARow([this] { EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id)); }));
  // Without attaching again, the worker can still ask for what only a keeper gives.
  auto next = cluster_->StartLedger(2);
  ASSERT_OK(next);
  ASSERT_OK(cluster_->Handoff((*next)->id));
  ASSERT_OK(cluster_->Handoff(owner_->id));
  EXPECT_THAT(Baton({"events", "ledger"}), HasSubstr("keeper_followed"));
  harness::ExpectNothingLost(*peer_);
}

// Another process that knows a worker's number and key does not get its session.
TEST_F(KeeperDeath, shouldResumeASessionForItsOwnProcessAlone) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto ask = [this](const internal::WorkerRequest& request) {
    MessageChannel channel(ConnectUnix(cluster_->SocketPath()).value());
    internal::WorkerReply reply;
    BATON_CHECK(channel.Send(request).ok());
    BATON_CHECK(channel.Receive(&reply, 20'000).ok());
    return static_cast<absl::StatusCode>(reply.status_code());
  };
  // This process is a worker, too.
  const internal::WorkerRequest attach = AttachRequest();
  internal::WorkerRequest resume;
  MessageChannel session(ConnectUnix(cluster_->SocketPath()).value());
  internal::WorkerReply attached;
  ASSERT_OK(session.Send(attach));
  ASSERT_OK(session.Receive(&attached, 20'000));
  ASSERT_TRUE(attached.has_attached()) << attached.status_message();
  ASSERT_FALSE(attached.attached().session_key().empty());
  resume.mutable_resume()->set_worker_id(attached.attached().worker_id());
  resume.mutable_resume()->set_session_key(attached.attached().session_key());
  EXPECT_EQ(ask(resume), absl::StatusCode::kNotFound);  // its keeper lives

  ASSERT_NO_FATAL_FAILURE(Replace());
  internal::WorkerRequest wrong = resume;
  wrong.mutable_resume()->set_session_key(std::string(16, 'x'));
  EXPECT_EQ(ask(wrong), absl::StatusCode::kPermissionDenied);
  wrong.mutable_resume()->clear_session_key();
  EXPECT_EQ(ask(wrong), absl::StatusCode::kPermissionDenied);
  const pid_t other = fork();
  if (other == 0) _exit(ask(resume) == absl::StatusCode::kPermissionDenied ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);

  MessageChannel next(ConnectUnix(cluster_->SocketPath()).value());
  internal::WorkerReply resumed;
  ASSERT_OK(next.Send(resume));
  ASSERT_OK(next.Receive(&resumed, 20'000));
  EXPECT_EQ(resumed.status_code(), 0) << resumed.status_message();
  internal::WorkerRequest detach;
  detach.mutable_detach();
  ASSERT_OK(next.Send(detach));
  ASSERT_OK(next.Receive(&resumed, 20'000));
  EXPECT_EQ(resumed.status_code(), 0) << resumed.status_message();
  harness::ExpectNothingLost(*peer_);
}

// One that is asked to end, as by an operator, is followed, too.
TEST_F(KeeperDeath, shouldBeFollowedWhenTheKeeperEndsInOrder) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Replace(SIGTERM));
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  harness::ExpectNothingLost(*peer_);
}

TEST_F(KeeperDeath, shouldNotDelayAWorkersSuccessor) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(DieWithOwners());
}

// The device says in asynchronous events that connections which have ended hold no receive any
// more, here while no keeper runs.
TEST_F(KeeperDeath, shouldNotDelayAWorkersSuccessorWhereReceivesAreShared) {
  ASSERT_NO_FATAL_FAILURE(Start(SharedReceives()));
  ASSERT_NO_FATAL_FAILURE(DieWithOwners());
}

// A successor of a service with effects outside waits until the owner is proven dead. The keeper
// dies before it has the proof, which the next one has to find.
TEST_F(KeeperDeath, shouldBeFollowedByOneThatProvesAWorkersDeath) {
  ClusterOptions options;
  options.batond_arguments = {"--outside-effects"};
  ASSERT_NO_FATAL_FAILURE(Start(options));
  auto standby = cluster_->StartLedger(2);
  ASSERT_OK(standby);
  for (int i = 0; i < 3; ++i) {
    const pid_t keeper = Service().keeper_pid();
    ASSERT_EQ(kill(keeper, SIGSTOP), 0);
    ASSERT_OK(owner_->process->Kill());
    ASSERT_EQ(kill(keeper, SIGKILL), 0);
    ASSERT_NO_FATAL_FAILURE(AwaitAnother(keeper));
    ASSERT_OK(cluster_->WaitUntilOwner((*standby)->id));
    ASSERT_OK(peer_->Settle());
    owner_ = *std::move(standby);
    standby = cluster_->StartLedger(1 + i % 2);
    ASSERT_OK(standby);
  }
  harness::ExpectNothingLost(*peer_);
}

// The driver has the order for a grant, and the keeper no answer, when the keeper dies. The quota
// would refuse a grant that is made twice, and the next one if one were left.
TEST_F(KeeperDeath, shouldGrantOnceWhatItWasAskedForAsItDied) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(harness::SetPolicy(*cluster_, "worker { grants: 1 }").status, 0);
  Bystander bystander;
  WorkerOptions options;
  options.socket = cluster_->SocketPath();
  options.service = "ledger";
  const auto worker = Worker::Attach(options, &bystander);
  ASSERT_OK(worker);
  const auto ask = [&] { return (*worker)->GrantRemoteAccess(0, 64, verbs::kRemoteRead); };
  for (int i = 0; i < 8; ++i) {
    const pid_t keeper = Service().keeper_pid();
    ASSERT_EQ(kill(driver_, SIGSTOP), 0);
    absl::Status awaited;
    // The worker's own thread waits for the grant. The keeper first tells the driver what it deals
    // with, and then has it grant. It dies before, meanwhile, or after.
    std::thread killer([&] {
      awaited = harness::WaitUntil("the keeper to wait for its driver", [&] {
        return harness::StatusOf(driver_, "State").starts_with("T") && WaitsForAnAnswer(keeper);
      });
      kill(driver_, SIGCONT);
      for (int turns = 0; turns < i * 200; ++turns) sched_yield();
      kill(keeper, SIGKILL);
    });
    const auto granted = ask();
    killer.join();
    ASSERT_OK(awaited);
    ASSERT_OK(granted);
    ASSERT_NO_FATAL_FAILURE(AwaitAnother(keeper));
    // Three keepers that die young drop it.
    ASSERT_EQ(harness::SetPolicy(*cluster_, "worker { grants: 1 }").status, 0);
    const auto another = ask();
    EXPECT_THAT(std::string(another.status().message()), HasSubstr("policy.worker.grants:"));
    ASSERT_OK((*worker)->RevokeGrant(granted->id));
  }
  ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

// The keeper dies with what workers have just sent, before their sessions begin.
TEST_F(KeeperDeath, shouldBeFollowedByOneThatServesWhoeverWasAttaching) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int i = 0; i < 5; ++i) {
    const pid_t keeper = Service().keeper_pid();
    auto worker = cluster_->SpawnLedger(harness::LedgerOptions());
    ASSERT_OK(worker);
    for (int polls = 0; polls < i * 20; ++polls) (void)cluster_->GetService();
    ASSERT_EQ(kill(keeper, SIGKILL), 0);
    ASSERT_OK(harness::WaitUntil("the worker to be ready", [&] {
      const auto service = cluster_->GetService();
      return service.ok() && std::any_of(service->workers().begin(), service->workers().end(),
                                         [&](const v1::Worker& one) {
                                           return one.pid() == (*worker)->pid() &&
                                                  one.state() == v1::WORKER_STATE_READY;
                                         });
    }));
    ASSERT_NO_FATAL_FAILURE(AwaitAnother(keeper));
    ASSERT_OK((*worker)->Kill());
  }
  harness::ExpectNothingLost(*peer_);
}

TEST_F(KeeperDeath, shouldLeaveInForceWhatWasSetAtRunTime) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(harness::SetPolicy(*cluster_, "service { connections: 9 }").status, 0);
  ASSERT_NO_FATAL_FAILURE(Replace());
  EXPECT_THAT(Baton({"service", "policy", "ledger"}), HasSubstr("connections: 9"));
  (void)Baton({"drain", "ledger", "--no-wait"});
  ASSERT_NO_FATAL_FAILURE(Replace());
  EXPECT_TRUE(Service().has_drain());
  (void)Baton({"drain", "--end", "ledger"});
  ASSERT_NO_FATAL_FAILURE(Replace());
  EXPECT_FALSE(Service().has_drain());
  ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

// Each event of the kind config_taken names what the keeper that takes it did not run with.
TEST_F(KeeperDeath, shouldLeaveInForceWhatAReloadHasChanged) {
  ClusterOptions options;
  options.by_file = true;
  ASSERT_NO_FATAL_FAILURE(Start(options));
  const auto reload = [&](const std::string& service, const std::string& changed) {
    ASSERT_OK(cluster_->WriteConfig(service, "distrust_contained_root: true"));
    (void)Baton({"reload"});
    EXPECT_OK(harness::WaitUntil("the keeper to take " + changed, [&] {
      return Baton({"events", "ledger"}).find("in force: " + changed) != std::string::npos;
    }));
  };
  ASSERT_NO_FATAL_FAILURE(reload("", "distrust_contained_root"));
  ASSERT_NO_FATAL_FAILURE(Replace());
  ASSERT_NO_FATAL_FAILURE(reload("max_listeners: 7", "max_listeners"));
  EXPECT_THAT(Baton({"events", "ledger"}), Not(HasSubstr("max_listeners, distrust")));
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  harness::ExpectNothingLost(*peer_);
}

// The driver's answer is longer than what its socket takes at once.
TEST_F(KeeperDeath, shouldListAsManyConnectionsAsThereAre) {
  ClusterOptions options;
  options.max_connections = 1200;
  options.batond_arguments = {"--buffer-bytes", "33554432"};
  ASSERT_NO_FATAL_FAILURE(Start(options));
  PeerOptions many;
  many.connections = 1100;
  many.active = 1;
  auto crowd = cluster_->StartPeer(many);
  ASSERT_OK(crowd);
  const std::string listed = Baton({"connection", "list", "ledger"});
  EXPECT_GE(std::count(listed.begin(), listed.end(), '\n'), 1100);
  ASSERT_NO_FATAL_FAILURE(Replace());
  harness::ExpectNothingLost(**crowd);
  harness::ExpectNothingLost(*peer_);
}

// A setting may be why keepers crash. It costs itself, and no connection.
TEST_F(KeeperDeath, shouldDropWhatWasSetAtRunTimeWhenKeepersCrashInARow) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(harness::SetPolicy(*cluster_, "service { connections: 9 }").status, 0);
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Replace(SIGSEGV));
  EXPECT_OK(harness::WaitForEvent(*cluster_, {"keeper_settings_dropped"}));
  EXPECT_THAT(Baton({"service", "policy", "ledger"}), Not(HasSubstr("connections: 9")));
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
  harness::ExpectNothingLost(*peer_);
}

// Each keeper dies of one thing, by a crash point of baton-keeper-test-hooks.
class KeeperDeathByPlan : public KeeperDeath {
 protected:
  ~KeeperDeathByPlan() override { unsetenv("BATON_CRASH_AT"); }

  void StartWithPlan(const std::string& what) {
    ASSERT_EQ(setenv("BATON_CRASH_AT", absl::StrCat("keeper-deals-with ", what).c_str(), 1), 0);
    ClusterOptions options;
    options.keeper = "baton-keeper-test-hooks";
    ASSERT_NO_FATAL_FAILURE(Start(options));
    ASSERT_EQ(harness::SetPolicy(*cluster_, "service { connections: 9 }").status, 0);
  }
  void ExpectEverythingElseGoesOn() {
    EXPECT_THAT(Baton({"service", "policy", "ledger"}), HasSubstr("connections: 9"));
    EXPECT_THAT(Baton({"events", "ledger"}), Not(HasSubstr("keeper_settings_dropped")));
    EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
    ASSERT_NO_FATAL_FAILURE(ExpectServed());
    harness::ExpectNothingLost(*peer_);
  }
};

TEST_F(KeeperDeathByPlan, shouldRefuseARequestThatThreeKeepersHaveDiedOf) {
  ASSERT_NO_FATAL_FAILURE(StartWithPlan("request 77 of worker 2 (listen)"));
  // This process is a worker, too.
  internal::WorkerRequest attach = AttachRequest();
  attach.mutable_attach()->set_resumes_session(true);
  internal::WorkerReply attached;
  std::optional<MessageChannel> session(ConnectUnix(cluster_->SocketPath()).value());
  ASSERT_OK(session->Send(attach));
  ASSERT_OK(session->Receive(&attached, 20'000));
  ASSERT_EQ(attached.attached().worker_id(), 2u) << attached.status_message();
  internal::WorkerRequest resume, listen;
  resume.mutable_resume()->set_worker_id(2);
  resume.mutable_resume()->set_session_key(attached.attached().session_key());
  listen.mutable_listen()->set_host(ClusterOptions().fabric.host);
  listen.set_number(77);
  int deaths = 0;
  internal::WorkerReply reply;
  for (;; ++deaths) {
    ASSERT_LE(deaths, 3);
    (void)session->Send(listen);
    if (session->Receive(&reply, 20'000).ok()) break;
    ASSERT_OK(harness::WaitUntil("the session to go on", [&] {
      auto socket = ConnectUnix(cluster_->SocketPath());
      if (!socket.ok()) return false;
      session.emplace(*std::move(socket));
      return session->Send(resume).ok() && session->Receive(&reply, 20'000).ok() &&
             reply.status_code() == 0;
    }));
  }
  EXPECT_EQ(deaths, 3);
  EXPECT_EQ(static_cast<absl::StatusCode>(reply.status_code()),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(reply.status_message(), HasSubstr("3 keepers in a row"));
  EXPECT_OK(harness::WaitForEvent(*cluster_, {"keeper_request_refused"}));
  // The same worker's next request is another one.
  listen.set_number(78);
  ASSERT_OK(session->Send(listen));
  ASSERT_OK(session->Receive(&reply, 20'000));
  EXPECT_EQ(reply.status_code(), 0) << reply.status_message();
  internal::WorkerRequest detach;
  detach.mutable_detach();
  ASSERT_OK(session->Send(detach));
  ASSERT_OK(session->Receive(&reply, 20'000));
  ExpectEverythingElseGoesOn();
}

TEST_F(KeeperDeathByPlan, shouldSetAsideAHeldEntryThatThreeKeepersHaveDiedOf) {
  ASSERT_NO_FATAL_FAILURE(StartWithPlan("held lasting/worker/1"));
  auto standby = cluster_->StartLedger(2);
  ASSERT_OK(standby);
  ASSERT_NO_FATAL_FAILURE(Replace());
  EXPECT_OK(harness::WaitForEvent(*cluster_, {"keeper_entry_set_aside"}));
  EXPECT_OK((*standby)->process->WaitEnd(std::chrono::seconds(20)));
  ASSERT_OK(cluster_->WaitUntilGone((*standby)->id));
  EXPECT_TRUE(std::filesystem::exists(cluster_->directory() + "/state/ledger.set_aside.0"));
  // Another worker gets its slot.
  auto another = cluster_->StartLedger(2);
  ASSERT_OK(another);
  ExpectEverythingElseGoesOn();
}

TEST_F(KeeperDeath, shouldBeReplacedByAnUpgradeOfBaton) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t keeper = Service().keeper_pid();
  EXPECT_THAT(Baton({"upgrade", "ledger", "--baton", "--dry-run"}),
              HasSubstr("would replace the keeper"));
  EXPECT_EQ(Service().keeper_pid(), keeper);
  EXPECT_THAT(Baton({"upgrade", "ledger", "--baton", "--watch-window", "1"}),
              HasSubstr(absl::StrCat("keeper replaced (pid ", keeper, ", release ", kRelease)));
  EXPECT_NE(Service().keeper_pid(), keeper);
  EXPECT_EQ(Service().driver_pid(), driver_);
  EXPECT_THAT(Baton({"service", "describe", "ledger"}), HasSubstr("Blackout, no_keeper"));
  EXPECT_THAT(Baton({"audit"}), HasSubstr("ReplaceKeeper"));
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
  harness::ExpectNothingLost(*peer_);
}

// One driver, one arena and one worker, which stay what they are.
TEST_F(KeeperDeath, shouldServeOnThroughThreeReleasesAndBackToTheSecond) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string program = harness::ReadFile(KeeperProgram());
  for (const std::string release : {"0.9.1", "0.9.2", "0.9.1"}) {
    const std::string other = harness::WithRelease(program, release);
    ASSERT_NE(other, "");
    harness::InstallProgram(KeeperProgram(), other);
    EXPECT_THAT(Baton({"upgrade", "ledger", "--baton", "--dry-run"}),
                HasSubstr("would replace the keeper"));
    (void)Baton({"upgrade", "ledger", "--baton", "--watch-window", "1"});
    EXPECT_EQ(Service().keeper_release(), release);
    EXPECT_EQ(Service().driver_release(), kRelease);
    EXPECT_EQ(Service().driver_pid(), driver_);
    ASSERT_NO_FATAL_FAILURE(ExpectServed());
    // The session is of use with each of them.
    auto next = cluster_->StartLedger(2);
    ASSERT_OK(next);
    ASSERT_OK(cluster_->Handoff((*next)->id));
    ASSERT_OK(cluster_->Handoff(owner_->id));
  }
  harness::ExpectNothingLost(*peer_);
}

// A package that has another release, with a keeper that cannot serve, replaces the file.
TEST_F(KeeperDeath, shouldServeOnWhenTheKeeperOfAnotherReleaseCannot) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::filesystem::path sound = std::filesystem::read_symlink(KeeperProgram());
  const pid_t keeper = Service().keeper_pid();
  harness::InstallProgram(KeeperProgram(), "#!/bin/sh\nexit 3\n");
  const harness::CommandResult upgrade =
      harness::RunBaton(*cluster_, {"upgrade", "ledger", "--baton"});
  EXPECT_EQ(upgrade.status, 1);
  EXPECT_THAT(upgrade.err, HasSubstr("ended with exit code 3"));
  EXPECT_THAT(Baton({"service", "describe", "ledger"}), HasSubstr("ended with exit code 3"));
  EXPECT_THAT(Baton({"events", "ledger"}), HasSubstr("keeper_program_given_up"));
  // The one that served never stopped, and the file has no part in what follows its death.
  EXPECT_EQ(Service().keeper_pid(), keeper);
  ASSERT_NO_FATAL_FAILURE(Replace());
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  harness::InstallProgram(KeeperProgram(), absl::StrCat("#!/bin/sh\nexec ", sound.string(), "\n"));
  (void)Baton({"upgrade", "ledger", "--baton", "--watch-window", "1"});
  EXPECT_THAT(Baton({"service", "describe", "ledger"}), Not(HasSubstr("given up")));
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
  harness::ExpectNothingLost(*peer_);
}

// A keeper that hangs is noticed by its driver, and followed if the policy says so.
TEST_F(KeeperDeath, shouldFollowAKeeperThatHangs) {
  ClusterOptions options;
  options.batond_arguments = {"--hang-timeout", "2"};
  ASSERT_NO_FATAL_FAILURE(Start(options));
  ASSERT_EQ(harness::SetPolicy(*cluster_, "on_keeper_hang: ON_KEEPER_HANG_RESTART").status, 0);
  const pid_t keeper = Service().keeper_pid();
  ASSERT_EQ(kill(keeper, SIGSTOP), 0);
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(keeper));
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  EXPECT_THAT(cluster_->batond().LogTail(), HasSubstr("has shown no sign of life"));
  EXPECT_OK(harness::WaitUntil("batond's report", [&] {
    return Baton({"events", "ledger"}).find("keeper_hangs") != std::string::npos;
  }));
  EXPECT_THAT(Baton({"events", "ledger", "--kind", "keeper_followed"}),
              HasSubstr("hung, and was killed"));
  harness::ExpectNothingLost(*peer_);
}

// The workers of a native service are forks of the driver, and operate the queues themselves.
class NativeKeeperDeath : public KeeperDeath {
 protected:
  static constexpr int kWorkers = 2;

  void Start(ClusterOptions options = ClusterOptions()) {
    options.native_object = Object("ledger-v1.so");
    options.batond_arguments.insert(options.batond_arguments.end(),
                                    {"--native-workers", std::to_string(kWorkers)});
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
    ASSERT_OK(cluster_->WaitUntilListening());
    ASSERT_NO_FATAL_FAILURE(AwaitWorkers());
    ASSERT_NO_FATAL_FAILURE(StartLoad());
    ASSERT_NE(driver_, static_cast<pid_t>(Service().keeper_pid()));
  }
  static std::string Object(const std::string& name) {
    return harness::Binaries().Find(name).value();
  }
  std::vector<v1::Worker> Workers() {
    const auto service = cluster_->GetService();
    if (!service.ok()) return {};
    return {service->workers().begin(), service->workers().end()};
  }
  std::vector<pid_t> Pids() {
    std::vector<pid_t> pids;
    for (const v1::Worker& worker : Workers()) pids.push_back(static_cast<pid_t>(worker.pid()));
    return pids;
  }
  static std::set<pid_t> PidSet(const std::vector<pid_t>& pids) {
    return {pids.begin(), pids.end()};
  }
  // Keepers die, and with each a worker. An heir takes over, and a peer that came before leaves,
  // while no keeper runs or while the next one takes over, which has another worker forked.
  void DieWithWorkers() {
    for (int i = 0; i < 3; ++i) {
      auto guest = cluster_->StartPeer(PeerOptions());
      ASSERT_OK(guest);
      const pid_t keeper = Service().keeper_pid();
      const pid_t worker = Pids().at(0);
      ASSERT_NO_FATAL_FAILURE(EndOrStop(keeper, i % 2 == 0));
      ASSERT_EQ(kill(worker, SIGKILL), 0);
      ASSERT_OK(peer_->Settle());
      harness::ExpectNothingLost(**guest);
      ASSERT_NO_FATAL_FAILURE(EndForGood());
      ASSERT_NO_FATAL_FAILURE(AwaitAnother(keeper));
      ASSERT_NO_FATAL_FAILURE(AwaitWorkers(worker));
    }
    EXPECT_THAT(Baton({"events", "ledger"}), HasSubstr("was killed by signal 9"));
    ASSERT_NO_FATAL_FAILURE(ExpectThePeersConnectionsAlone());
    harness::ExpectNothingLost(*peer_);
  }
  static bool IsReady(const v1::Worker& worker) { return worker.state() == v1::WORKER_STATE_READY; }
  // Returns when the keeper has asked its driver for another worker, and the driver has forked it
  // or refused.
  void AwaitFork() {
    ASSERT_OK(harness::WaitUntil(
        "an answer to the keeper's order to fork a worker",
        [this] {
          const auto events = cluster_->keeper().NewEvents();
          return events.ok() &&
                 std::any_of(events->begin(), events->end(), [](const v1::Event& event) {
                   return event.kind() == "native_worker_forked" ||
                          event.kind() == "native_worker_failed";
                 });
        },
        std::chrono::seconds(30)));
  }
  // Returns when as many as are configured are ready, none of them `dead`.
  void AwaitWorkers(pid_t dead = 0) {
    ASSERT_OK(harness::WaitUntil(
        "the workers",
        [&] {
          const std::vector<v1::Worker> workers = Workers();
          return std::count_if(workers.begin(), workers.end(), IsReady) == kWorkers &&
                 std::none_of(workers.begin(), workers.end(), [&](const v1::Worker& worker) {
                   return static_cast<pid_t>(worker.pid()) == dead;
                 });
        },
        harness::Patient(std::chrono::seconds(30))));
  }
};

TEST_F(NativeKeeperDeath, shouldGoUnnoticedByPeersAndWorkers) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<pid_t> workers = Pids();
  const size_t of_worker = harness::DescriptorsOf(workers[0]);
  ASSERT_NO_FATAL_FAILURE(DieInARow([&] { EXPECT_EQ(Pids(), workers); }));
  EXPECT_OK(harness::WaitUntil("as many descriptors as before",
                               [&] { return harness::DescriptorsOf(workers[0]) <= of_worker; }));
  EXPECT_THAT(Baton({"events", "ledger"}), HasSubstr("keeper_followed"));
  harness::ExpectNothingLost(*peer_);
}

TEST_F(NativeKeeperDeath, shouldNotDelayAWorkersSuccessor) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(DieWithWorkers());
}

TEST_F(NativeKeeperDeath, shouldNotDelayAWorkersSuccessorWhereReceivesAreShared) {
  ASSERT_NO_FATAL_FAILURE(Start(SharedReceives()));
  ASSERT_NO_FATAL_FAILURE(DieWithWorkers());
}

// The program is the one that an upgrade has brought, not the configured one.
TEST_F(NativeKeeperDeath, shouldForkTheProgramThatServes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  harness::UpgradeOptions options;
  options.program = "ledger-v2.so";
  options.plan.set_workers(kWorkers);
  options.plan.set_watch_window_ms(300);
  const auto upgrade = cluster_->StartUpgrade(options);
  ASSERT_OK(upgrade);
  ASSERT_NO_FATAL_FAILURE(Replace());
  const auto ended = cluster_->WaitUntilUpgradeEnds(upgrade->id());
  ASSERT_OK(ended);
  ASSERT_EQ(ended->phase(), v1::UPGRADE_PHASE_COMPLETED) << ended->ShortDebugString();
  ASSERT_NO_FATAL_FAILURE(AwaitWorkers());
  ASSERT_NO_FATAL_FAILURE(Replace());
  const pid_t worker = Pids().at(0);
  ASSERT_EQ(kill(worker, SIGKILL), 0);
  ASSERT_NO_FATAL_FAILURE(AwaitWorkers(worker));
  for (const v1::Worker& one : Workers()) EXPECT_EQ(one.version(), "v2");
  ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

// The old workers are gone when the upgrade is undone, so the new ones stay, also under keepers
// that follow.
TEST_F(NativeKeeperDeath, shouldLeaveTheProgramOfAFailedUpgradeThatServes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<pid_t> old_workers = Pids();
  harness::UpgradeOptions options;
  options.program = "ledger-v2.so";
  options.plan.set_workers(kWorkers);
  options.plan.set_watch_window_ms(600'000);
  const auto upgrade = cluster_->StartUpgrade(options);
  ASSERT_OK(upgrade);
  ASSERT_OK(cluster_->WaitForUpgrade(upgrade->id(), "its window", [](const v1::Upgrade& now) {
    return now.phase() == v1::UPGRADE_PHASE_WATCHING;
  }));
  for (const pid_t worker : old_workers) ASSERT_EQ(kill(worker, SIGKILL), 0);
  ASSERT_OK(harness::WaitUntil("the old workers to be gone", [&] {
    const std::set<pid_t> now = PidSet(Pids());
    return std::none_of(old_workers.begin(), old_workers.end(),
                        [&](pid_t worker) { return now.contains(worker); });
  }));
  v1::RollbackRequest undo;
  undo.set_service("ledger");
  ASSERT_OK(cluster_->operators().Rollback(undo));
  const auto ended = cluster_->WaitUntilUpgradeEnds(upgrade->id());
  ASSERT_OK(ended);
  ASSERT_THAT(ended->detail(), HasSubstr("the new ones stay"));
  const auto new_workers = [this] {
    std::set<pid_t> pids;
    for (const v1::Worker& worker : Workers()) {
      if (worker.version() == "v2") pids.insert(static_cast<pid_t>(worker.pid()));
    }
    return pids;
  };
  const std::set<pid_t> before = new_workers();
  ASSERT_EQ(before.size(), static_cast<size_t>(kWorkers));
  // The first keeper that follows would end them before the last one follows.
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(Replace());
    ASSERT_NO_FATAL_FAILURE(ExpectServed());
  }
  EXPECT_EQ(new_workers(), before);
  harness::ExpectNothingLost(*peer_);
}

TEST_F(NativeKeeperDeath, shouldRefuseAProcessThatTheDriverHasNotForked) {
  ASSERT_NO_FATAL_FAILURE(Start());
  MessageChannel channel(ConnectUnix(cluster_->SocketPath()).value());
  internal::WorkerReply reply;
  ASSERT_OK(channel.Send(AttachRequest()));
  ASSERT_OK(channel.Receive(&reply, 20'000));
  EXPECT_EQ(static_cast<absl::StatusCode>(reply.status_code()),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(reply.status_message(), HasSubstr("is native, and its driver forks its workers"));
  harness::ExpectNothingLost(*peer_);
}

// A driver that has no descriptors for another worker, or for the keeper's copies, refuses the
// order.
TEST_F(NativeKeeperDeath, shouldNotFollowFromADriverWithoutFreeDescriptors) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t keeper = Service().keeper_pid();
  rlimit before = {};
  ASSERT_EQ(prlimit(driver_, RLIMIT_NOFILE, nullptr, &before), 0);
  for (rlim_t spare = 1; spare < 8; ++spare) {
    SCOPED_TRACE(spare);
    const pid_t worker = Pids().at(0);
    const rlimit low = {harness::DescriptorsOf(driver_) + spare, before.rlim_max};
    ASSERT_EQ(prlimit(driver_, RLIMIT_NOFILE, &low, nullptr), 0);
    ASSERT_OK(cluster_->keeper().NewEvents());  // earlier ones do not count
    ASSERT_EQ(kill(worker, SIGKILL), 0);
    ASSERT_NO_FATAL_FAILURE(AwaitFork());
    ASSERT_EQ(prlimit(driver_, RLIMIT_NOFILE, &before, nullptr), 0);
    ASSERT_NO_FATAL_FAILURE(AwaitWorkers(worker));
    EXPECT_EQ(Service().keeper_pid(), keeper);
  }
  ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

// Workers that have not attached when their keeper dies are the next one's.
TEST_F(NativeKeeperDeath, shouldLeaveNoWorkerThatNoKeeperKnows) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int i = 0; i < 5; ++i) {
    const pid_t keeper = Service().keeper_pid();
    for (const pid_t worker : Pids()) ASSERT_EQ(kill(worker, SIGKILL), 0);
    // Others are forked about now.
    ASSERT_EQ(kill(keeper, SIGKILL), 0);
    ASSERT_NO_FATAL_FAILURE(AwaitAnother(keeper));
    ASSERT_NO_FATAL_FAILURE(AwaitWorkers());
    ASSERT_OK(harness::WaitUntil("the driver's forks to be the workers", [this] {
      std::vector<pid_t> forks = harness::ChildrenOf(driver_);
      std::erase_if(forks, [](pid_t child) {
        const std::string name = harness::StatusOf(child, "Name");
        return name == "baton-keeper" || name == "baton-nic" || name == "baton-twin";
      });
      return PidSet(forks) == PidSet(Pids());
    }));
  }
  ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

}  // namespace
}  // namespace baton
