#include "supervisor/cli/cli.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/cli/cli_fixture.h"

namespace baton {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CliTest : public CliFixture {
 protected:
  using Result = CliResult;

  // Expects that `arguments` print exactly `golden`, and nothing else.
  void Expect(std::vector<std::string> arguments, const std::string& golden) {
    const Result result = Run(std::move(arguments));
    EXPECT_EQ(result.code, kExitOk);
    EXPECT_EQ(result.out, golden);
    EXPECT_EQ(result.err, "");
  }

  // Logs an event of the keeper, and waits until control has heard of it.
  void LogAndAwait(const v1::Event& event) {
    keeper_->Log(event);
    ASSERT_EQ(harness::WaitUntil(
                  "control to know of " + event.kind(),
                  [&] {
                    return Run({"events", "kv"}).out.find(event.kind()) != std::string::npos;
                  }),
              absl::OkStatus());
  }

  // Its exit code.
  std::future<int> FollowEvents(SharedText* out, SharedText* err, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--state-dir", state_dir_, "events", "kv", "--follow"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::async(std::launch::async, [=] {
      std::istringstream in;
      std::ostream to_out(out), to_err(err);
      return RunCli(arguments, Console{.in = in, .out = to_out, .err = to_err});
    });
  }

  void SetHandoffReply() {
    internal::ManagementReply reply;
    reply.mutable_handoff()->set_to_worker_id(2);
    reply.mutable_handoff()->add_shards(0);
    reply.mutable_handoff()->add_shards(1);
    reply.mutable_handoff()->set_slowest_blackout_us(1234.5);
    keeper_->SetHandoff(reply);
  }

  // A program that is there and may be executed.
  std::string Program() {
    std::string path = state_dir_ + "/kv-1.1";
    std::ofstream(path) << "#!/bin/sh\n";
    EXPECT_EQ(chmod(path.c_str(), 0755), 0);
    return path;
  }

  size_t CountUpgrades() {
    return keeper_->CountRequests([](const auto& r) { return r.has_upgrade(); });
  }
};

TEST_F(CliTest, Status) {
  const Result result = Run({"status"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, StartsWith("Release:   0.1.0 (layout 2, protocol 1)\nControl:   pid "));
  EXPECT_THAT(result.out, HasSubstr("Services:  2\n\nSERVICE  STATE "));
  EXPECT_THAT(result.out, HasSubstr("Problems:\n  nvme: the keeper of service \"nvme\""));
}

TEST_F(CliTest, shouldShowInTheStatusWhyControlAndBatondCouldNotBeReplaced) {
  config_.set_batond_release("0.1.0");
  config_.set_control_program_given_up("the new program /baton-control is given up");
  config_.set_batond_program_given_up("the new program /batond is given up");
  StartControl();
  const Result result = Run({"status"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("; the new program /baton-control is given up\n"
                                    "batond:    release 0.1.0; the new program /batond is given "
                                    "up\nServices:  2\n"));
}

TEST_F(CliTest, ServiceList) {
  const Result result = Run({"service", "list"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(
      result.out,
      StartsWith("SERVICE  STATE        DEVICE  SHARDS  WORKERS  CONNECTIONS  KEEPER PID     UP\n"
                 "kv       waiting      soft       1/2      2/2         3/64        4711  1h02m\n"
                 "nvme     unreachable  -            -        -            -           -      -\n"
                 "\nProblems:\n  nvme: "));
}

TEST_F(CliTest, ServiceDescribe) {
  Expect({"service", "describe", "kv"}, R"(Service:              kv
Device:               soft
Keeper:               pid 4711, up 1h02m
Driver:               pid 4710, up 1h02m
Version:              0.1.0 (layout 2, protocol 1)
Worker socket:        /run/baton/kv.sock
Listeners:            0.0.0.0:7471
Shards owned:         1 of 2
Workers ready:        2 of 2
Upgrade:              none under way
New connections:      taken
Connections:          3 of 64
Buffers:              16MiB
Device objects:       -
Grants:               -
Blackout, handoff:    2 times, p50 31us, p99 45us, max 45us
Blackout, no_keeper:  once, 21.0ms

Shards:
SHARD  EPOCH  OWNER  HEIR  CONNECTIONS  COMMITS  IN FLIGHT  WAITING FOR
    0      3      1     2            2      120          7  -
    1      1      -     -            1        0          0  no worker is ready

Workers:
SERVICE  ID  NAME    VERSION  STATE   PID  SHARDS  HEALTH   ATTACHED
kv        1  kv-old  1.0      ready  4712  0       ok      1h00m ago
kv        2  kv-new  1.1      ready  4713  -       ok        59s ago
)");
}

TEST_F(CliTest, WorkerListOfAllWarnsOfServicesNotReached) {
  const Result result = Run({"worker", "list"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.out, EndsWith("kv-new  1.1      ready  4713  -       ok        59s ago\n"));
  EXPECT_THAT(result.err, StartsWith("warning: the keeper of service \"nvme\" cannot be reached"));
}

TEST_F(CliTest, WorkerDescribe) {
  Expect({"worker", "describe", "kv", "1"}, R"(Worker:          1 of service kv
Name:            kv-old
Version:         1.0
Library:         -
State:           ready
Process:         pid 4712, uid 1000
Attached:        1h00m ago
Shards:          0
Heartbeats:      77
Last heartbeat:  50ms ago
State versions:  reads 1 to 2, writes 1
Control stream:  open
Health:          ok
)");
}

TEST_F(CliTest, WorkerHealth) {
  const auto stream = OpenStream(1);
  stream->ReportHealth(false, "disk full");
  ASSERT_TRUE(harness::WaitUntil("its health", [&] {
                return Run({"worker", "describe", "kv", "1"})
                    .out.ends_with("\nHealth:          bad: disk full\n");
              }).ok());
  EXPECT_THAT(Run({"worker", "list", "kv"}).out, HasSubstr("0       bad     1h00m ago\n"));
  const Result json = Run({"worker", "describe", "kv", "1", "-o", "json"});
  EXPECT_THAT(json.out, HasSubstr("\"healthy\": false,\n  \"health_detail\": \"disk full\""));
}

TEST_F(CliTest, WorkerStopAsksAndWaits) {
  Result result = Run({"worker", "stop", "kv", "1"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(result.err, "error: not confirmed, nothing was stopped: add --yes\n");
  result = Run({"worker", "stop", "kv", "1"}, "n\n");
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, StartsWith("Stop worker 1 of service kv (kv-old 1.0, pid 4712)? Its"));
  result = Run({"worker", "stop", "kv", "2", "--yes"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, StartsWith("error: worker 2 of service \"kv\" has no stream to control"));
  EXPECT_EQ(Run({"worker", "stop", "kv", "77", "--yes"}).code, kExitNotFound);

  const auto stream = OpenStream(1);
  result = Run({"worker", "stop", "kv", "1", "--yes", "--wait-timeout", "0.05"});
  EXPECT_EQ(result.code, kExitTimedOut);
  EXPECT_THAT(result.err, HasSubstr("was asked to end and is still there"));
  EXPECT_THAT(result.err, EndsWith("; --wait-timeout gives it longer\n"));
  on_shutdown_ = [this] {
    internal::Description without = KvDescription();
    without.mutable_workers()->DeleteSubrange(0, 1);
    keeper_->SetDescription(without);
  };
  result = Run({"worker", "stop", "kv", "1"}, "y\n");
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, EndsWith("worker 1 of service kv has ended\n"));
}

TEST_F(CliTest, WorkerKillAsks) {
  const auto killed = [](const internal::ManagementRequest& r) { return r.has_kill_worker(); };
  Result result = Run({"worker", "kill", "kv", "2"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(result.err, "error: not confirmed, nothing was killed: add --yes\n");
  result = Run({"worker", "kill", "kv", "2"}, "n\n");
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(keeper_->CountRequests(killed), 0u);
  result = Run({"worker", "kill", "kv", "2"}, "y\n");
  EXPECT_EQ(result.code, kExitOk) << result.err;
  result = Run({"worker", "kill", "kv", "2", "--yes"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "worker 2 of service kv was sent SIGKILL\n");
  EXPECT_EQ(keeper_->CountRequests(killed), 2u);
}

TEST_F(CliTest, ShardList) {
  Expect({"shard", "list", "kv"},
         "SHARD  EPOCH  OWNER  HEIR  CONNECTIONS  COMMITS  IN FLIGHT  WAITING FOR\n"
         "    0      3      1     2            2      120          7  -\n"
         "    1      1      -     -            1        0          0  no worker is ready\n");
}

TEST_F(CliTest, ShardDescribeWithTheReconciliationReport) {
  Expect({"shard", "describe", "kv", "0"}, R"(Shard:              0 of service kv
Owner:              worker 1
Heir:               worker 2
Epoch:              3
Connections:        2
Commits:            120
Sends:              240 posted, 7 in flight
Receives:           260 posted
Completions:        500, 4 not acknowledged
Handoff blackout:   2 times, p50 31us, p99 45us, max 45us
Failover blackout:  none yet

Last change of owner:
  Cause:                   crash, ended epoch 2
  Time:                    2025-01-31T09:15:00.123456Z
  Owners:                  worker 9, then worker 1
  Transactions recovered:  1 (committed, applied only at the cut)
  Never submitted:         2 (committed, not yet posted: posted since)
  In flight:               1 (posted, no completion yet)
  Completed, undelivered:  0 (the former owner had not read them)
  Delivered, uncommitted:  1 (read, not acknowledged: delivered again)

  Work requests (2 of 4):
  CONNECTION  QUEUE    SEQUENCE  OPCODE  OUTCOME
           0  send           17  SEND    in_flight
           5  receive        18  RECV    never_submitted
)");
}

TEST_F(CliTest, ShardDescribeOfOneThatWaits) {
  const Result result = Run({"shard", "describe", "kv", "1"});
  EXPECT_THAT(result.out, HasSubstr("Owner:              nobody: no worker is ready\n"));
}

TEST_F(CliTest, ShardDescribeTellsOfPoison) {
  const Result result = Run({"shard", "describe", "kv", "1"});
  EXPECT_THAT(result.out,
              HasSubstr("Poisoned:           1 connection, failed because workers died on it\n"));
  EXPECT_THAT(result.out, HasSubstr("\n  Poisoned: connection 6, failed: 3 workers (5, 7, 8) died "
                                    "on its receive 17\n"));
}

TEST_F(CliTest, ConnectionList) {
  Expect({"connection", "list", "kv"},
         "CONNECTION  SHARD  STATE        PEER            SENDS  RECEIVES  ERROR\n"
         "         0      0  established  10.0.0.2:40001     10         0  -\n"
         "         1      0  established  10.0.0.2:40001     10         0  -\n"
         "         5      1  draining     10.0.0.2:40001     10         0  retry exceeded\n");
  Expect({"connection", "list", "kv", "--shard", "1"},
         "CONNECTION  SHARD  STATE     PEER            SENDS  RECEIVES  ERROR\n"
         "         5      1  draining  10.0.0.2:40001     10         0  retry exceeded\n");
}

TEST_F(CliTest, ConnectionDescribe) {
  Expect({"connection", "describe", "kv", "5"},
         R"(Connection:         5 (generation 1) of service kv
Shard:              1
State:              draining
Queue pair:         19
Local address:      10.0.0.1:7471
Peer address:       10.0.0.2:40001
Sends:              10/11/12 completed/posted/committed
Receives:           0/0/0 completed/posted/committed
Receive window:     32 messages, 4.1ms at the rate so far
READs, atomics:     16 at a time to the peer, 0 from it
Received:           2KiB
Application state:  0B, format version 0
Last error:         retry exceeded
)");
}

TEST_F(CliTest, Handoff) {
  SetHandoffReply();
  Expect({"handoff", "kv", "--shard", "0", "--shard", "1", "--to", "2", "--wait-timeout", "2.5"},
         "Shards moved:      2 (0, 1)\n"
         "To worker:         2\n"
         "Slowest blackout:  1.2ms\n");
  EXPECT_EQ(keeper_->CountRequests([](const internal::ManagementRequest& r) {
    return r.handoff().timeout_ms() == 2500 && r.handoff().shards_size() == 2;
  }),
            1u);
}

TEST_F(CliTest, UpgradeTellsThePhasesAndWhatCameOfIt) {
  keeper_->SetUpgrades({KvUpgrade(2, v1::UPGRADE_PHASE_FAILED)});
  v1::Upgrade starting = KvUpgrade(3, v1::UPGRADE_PHASE_STARTING);
  starting.set_detail("worker 2 is not ready");
  v1::Upgrade watching = KvUpgrade(3, v1::UPGRADE_PHASE_WATCHING);
  keeper_->PlanUpgrade({starting, starting, KvUpgrade(3, v1::UPGRADE_PHASE_HANDING_OVER), watching,
                        watching, KvUpgrade(3, v1::UPGRADE_PHASE_RETIRING),
                        KvUpgrade(3, v1::UPGRADE_PHASE_COMPLETED)});
  const Result result = Run({"upgrade", "kv", "--exec", Program()});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.err,
            "upgrade 3 of service kv: starting: worker 2 is not ready\n"
            "upgrade 3 of service kv: handing over\n"
            "upgrade 3 of service kv: watching\n"
            "upgrade 3 of service kv: retiring\n"
            "upgrade 3 of service kv: completed\n");
  EXPECT_EQ(result.out, R"(Upgrade:           3 of service kv
Program:           /opt/kv-1.1 --fast
Versions:          1.0 -> 1.1
Phase:             completed
Detail:            -
Old workers:       1
New workers:       2
Started:           2025-01-31T09:18:00.000000Z
Took:              31s
Slowest blackout:  212us
Slowest return:    -
)");
}

TEST_F(CliTest, UpgradeAsksAsItIsTold) {
  keeper_->PlanUpgrade({KvUpgrade(1, v1::UPGRADE_PHASE_STARTING)});
  const std::string program = Program();
  const Result result =
      Run({"upgrade", "kv", "--exec", state_dir_ + "/../" + program.substr(5), "--workers", "2",
           "--ready-timeout", "1.5", "--watch-window", "2.5", "--no-rollback", "--no-wait", "--",
           "--socket", "[a,b]", "", "--", "-o"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("Phase:             starting\n"));
  EXPECT_EQ(keeper_->CountRequests([&](const internal::ManagementRequest& r) {
    const v1::UpgradePlan& plan = r.upgrade();
    return plan.exec() == program && plan.workers() == 2 && plan.ready_timeout_ms() == 1500 &&
           plan.watch_window_ms() == 2500 && plan.no_rollback() && plan.replace_arguments() &&
           std::vector<std::string>(plan.arguments().begin(), plan.arguments().end()) ==
               std::vector<std::string>{"--socket", "[a,b]", "", "--", "-o"};
  }),
            1u);
}

TEST_F(CliTest, UpgradeKeepsWhatItIsNotTold) {
  const auto kept = [&](bool replaced) {
    return keeper_->CountRequests([&](const internal::ManagementRequest& r) {
      const v1::UpgradePlan& plan = r.upgrade();
      return r.has_upgrade() && plan.replace_arguments() == replaced && plan.arguments().empty() &&
             plan.workers() == 0 && plan.ready_timeout_ms() == 0 && plan.watch_window_ms() == 0 &&
             !plan.no_rollback();
    });
  };
  keeper_->PlanUpgrade({KvUpgrade(1, v1::UPGRADE_PHASE_STARTING)});
  EXPECT_EQ(Run({"upgrade", "kv", "--exec", Program(), "--no-wait"}).code, kExitOk);
  EXPECT_EQ(kept(false), 1u);
  // No arguments is something else than those that it has.
  keeper_->PlanUpgrade({KvUpgrade(2, v1::UPGRADE_PHASE_STARTING)});
  EXPECT_EQ(Run({"upgrade", "kv", "--exec", Program(), "--no-wait", "--"}).code, kExitOk);
  EXPECT_EQ(kept(true), 1u);
}

TEST_F(CliTest, UpgradeFailsWhenItIsNotCompleted) {
  keeper_->PlanUpgrade({KvUpgrade(1, v1::UPGRADE_PHASE_STARTING),
                        KvUpgrade(1, v1::UPGRADE_PHASE_RETURNING),
                        KvUpgrade(1, v1::UPGRADE_PHASE_ROLLED_BACK)});
  const Result back = Run({"upgrade", "kv", "--exec", Program()});
  EXPECT_EQ(back.code, kExitFailed);
  EXPECT_THAT(back.out,
              HasSubstr("Phase:             rolled back\nDetail:            worker 2 died"));
  EXPECT_THAT(back.out, HasSubstr("Slowest return:    340us\n"));
  EXPECT_THAT(back.err,
              EndsWith("error: upgrade 1 of service \"kv\" has not completed: worker 2 died\n"));
  keeper_->PlanUpgrade({KvUpgrade(2, v1::UPGRADE_PHASE_FAILED)});
  const Result failed = Run({"upgrade", "kv", "--exec", Program(), "-o", "json"});
  EXPECT_EQ(failed.code, kExitFailed);
  EXPECT_THAT(failed.out, HasSubstr("\"phase\": \"UPGRADE_PHASE_FAILED\""));
  EXPECT_THAT(failed.err, StartsWith("error: "));  // phases are for people
  EXPECT_THAT(failed.out, StartsWith("{\n \"version\": {\n  \"release\": \"0.1.0\""));
}

TEST_F(CliTest, UpgradeIsRefused) {
  const std::string nowhere = state_dir_ + "/nowhere";
  Result result = Run({"upgrade", "kv", "--exec", nowhere});
  EXPECT_EQ(result.code, kExitNotFound);
  EXPECT_THAT(result.err, StartsWith("error: --exec: there is no program " + nowhere));
  result = Run({"upgrade", "kv", "--exec", state_dir_});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("is not a program"));
  EXPECT_EQ(chmod(Program().c_str(), 0644), 0);
  result = Run({"upgrade", "kv", "--exec", state_dir_ + "/kv-1.1"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_EQ(CountUpgrades(), 0u);
  EXPECT_EQ(Run({"upgrade", "shop", "--exec", Program()}).code, kExitNotFound);
  keeper_->RefuseUpgrades(absl::FailedPreconditionError("upgrade 2 is under way: wait for it"));
  result = Run({"upgrade", "kv", "--exec", Program()});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_EQ(result.err, "error: upgrade 2 is under way: wait for it\n");
}

TEST_F(CliTest, UpgradeIsFollowedOverARestartOfControl) {
  keeper_->PlanUpgrade({KvUpgrade(1, v1::UPGRADE_PHASE_STARTING)});
  auto result = std::async(std::launch::async, [this] {
    return Run({"upgrade", "kv", "--exec", Program()});
  });
  const auto listed = [](const auto& r) { return r.has_list_upgrades(); };
  ASSERT_TRUE(keeper_->WaitForRequest(listed, 3));
  control_.reset();
  keeper_->SetUpgrades({KvUpgrade(1, v1::UPGRADE_PHASE_COMPLETED)});
  StartControl();
  const Result upgrade = result.get();
  EXPECT_EQ(upgrade.code, kExitOk) << upgrade.err;
  EXPECT_THAT(upgrade.err, EndsWith("upgrade 1 of service kv: completed\n"));
}

// A control that takes the place of another has no socket for a moment.
TEST_F(CliTest, ControlIsFoundWheneverItIsAskedForWhileItRestarts) {
  std::atomic<bool> restarted = false;
  auto restarts = std::async(std::launch::async, [&] {
    for (int i = 0; i < 20; ++i) {
      control_.reset();
      StartControl();
    }
    restarted = true;
  });
  while (!restarted) {
    const Result result = Run({"status"});
    EXPECT_EQ(result.code, kExitOk) << result.err;
  }
  restarts.get();
}

TEST_F(CliTest, UpgradeWhoseAnswerWasLostIsFoundAndFollowed) {
  keeper_->SetUpgrades({KvUpgrade(1, v1::UPGRADE_PHASE_COMPLETED)});
  keeper_->LoseUpgrades();
  auto result = std::async(std::launch::async, [this] {
    return Run({"upgrade", "kv", "--exec", Program()});
  });
  ASSERT_TRUE(keeper_->WaitForRequest([](const auto& r) { return r.has_upgrade(); }));
  control_.reset();
  keeper_->SetUpgrades(
      {KvUpgrade(2, v1::UPGRADE_PHASE_COMPLETED), KvUpgrade(1, v1::UPGRADE_PHASE_COMPLETED)});
  keeper_->SetAnswering(true);
  StartControl();
  const Result upgrade = result.get();
  EXPECT_EQ(upgrade.code, kExitOk) << upgrade.err;
  EXPECT_THAT(upgrade.out, StartsWith("Upgrade:           2 of service kv\n"));
  EXPECT_EQ(CountUpgrades(), 1u);
}

TEST_F(CliTest, UpgradeThatANewKeeperDoesNotKnowHasFailed) {
  keeper_->PlanUpgrade({KvUpgrade(1, v1::UPGRADE_PHASE_STARTING)});
  auto result = std::async(std::launch::async, [this] {
    return Run({"upgrade", "kv", "--exec", Program()});
  });
  ASSERT_TRUE(keeper_->WaitForRequest([](const auto& r) { return r.has_list_upgrades(); }, 3));
  v1::Upgrade another = KvUpgrade(1, v1::UPGRADE_PHASE_COMPLETED);
  another.set_started_unix_micros(another.started_unix_micros() + 1);
  keeper_->SetUpgrades({another});
  const Result upgrade = result.get();
  EXPECT_EQ(upgrade.code, kExitFailed);
  EXPECT_THAT(upgrade.err, HasSubstr("knows nothing of upgrade 1 any more"));
}

TEST_F(CliTest, UpgradeStopsWaitingForAControlThatStaysAway) {
  keeper_->PlanUpgrade({KvUpgrade(1, v1::UPGRADE_PHASE_STARTING)});
  auto result = std::async(std::launch::async, [this] {
    return Run({"--timeout", "0.5", "upgrade", "kv", "--exec", Program()});
  });
  ASSERT_TRUE(keeper_->WaitForRequest([](const auto& r) { return r.has_list_upgrades(); }, 3));
  control_.reset();
  const Result upgrade = result.get();
  EXPECT_EQ(upgrade.code, kExitUnreachable);
  EXPECT_THAT(upgrade.err, HasSubstr("goes on meanwhile: see `baton upgrades list kv`"));
}

TEST_F(CliTest, RollbackOfTheOneUnderWayIsDoneWhenItIsUndone) {
  keeper_->SetUpgrades({KvUpgrade(3, v1::UPGRADE_PHASE_WATCHING)});
  keeper_->PlanUpgrade(
      {KvUpgrade(3, v1::UPGRADE_PHASE_RETURNING), KvUpgrade(3, v1::UPGRADE_PHASE_ROLLED_BACK)});
  Result result = Run({"rollback", "kv"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.err, StartsWith("upgrade 3 of service kv: returning\n"));
  EXPECT_THAT(result.out, HasSubstr("Phase:             rolled back\n"));
  // It was too late.
  keeper_->SetUpgrades({KvUpgrade(3, v1::UPGRADE_PHASE_WATCHING)});
  keeper_->PlanUpgrade(
      {KvUpgrade(3, v1::UPGRADE_PHASE_RETIRING), KvUpgrade(3, v1::UPGRADE_PHASE_COMPLETED)});
  result = Run({"rollback", "kv"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("was not undone"));
  // It failed, and still serves.
  v1::Upgrade stays = KvUpgrade(3, v1::UPGRADE_PHASE_FAILED);
  stays.set_new_worker_ids(0, 1);
  stays.set_detail("the return was given up");
  keeper_->SetUpgrades({KvUpgrade(3, v1::UPGRADE_PHASE_WATCHING)});
  keeper_->PlanUpgrade({stays});
  result = Run({"rollback", "kv"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, EndsWith("was not undone: the return was given up\n"));
}

TEST_F(CliTest, RollbackToTheProgramBeforeIsDoneWhenThatServes) {
  keeper_->SetUpgrades({KvUpgrade(3, v1::UPGRADE_PHASE_COMPLETED)});
  v1::Upgrade starting = KvUpgrade(4, v1::UPGRADE_PHASE_STARTING);
  starting.set_rollback(true);
  v1::Upgrade completed = KvUpgrade(4, v1::UPGRADE_PHASE_COMPLETED);
  completed.set_rollback(true);
  keeper_->PlanUpgrade({starting, completed});
  Result result =
      Run({"rollback", "kv", "--ready-timeout", "1.5", "--watch-window", "2.5", "--no-rollback"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, StartsWith("Rollback:          4 of service kv\n"));
  EXPECT_EQ(keeper_->CountRequests([](const internal::ManagementRequest& r) {
    return r.rollback().ready_timeout_ms() == 1500 && r.rollback().watch_window_ms() == 2500 &&
           r.rollback().no_rollback();
  }),
            1u);
  keeper_->SetUpgrades({KvUpgrade(3, v1::UPGRADE_PHASE_COMPLETED)});
  keeper_->PlanUpgrade({starting, KvUpgrade(4, v1::UPGRADE_PHASE_FAILED)});
  result = Run({"rollback", "kv"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, EndsWith("has not completed: worker 2 was not ready within 30 s\n"));
}

TEST_F(CliTest, Upgrades) {
  Result result = Run({"upgrades", "list", "kv"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "service kv was not upgraded since its driver started\n");
  v1::Upgrade unknown = KvUpgrade(1, v1::UPGRADE_PHASE_FAILED);
  unknown.clear_new_version();
  keeper_->SetUpgrades({KvUpgrade(4, v1::UPGRADE_PHASE_WATCHING),
                        KvUpgrade(3, v1::UPGRADE_PHASE_ROLLED_BACK),
                        KvUpgrade(2, v1::UPGRADE_PHASE_COMPLETED), unknown});
  Expect({"upgrades", "list", "kv"},
         "UPGRADE  VERSIONS    STARTED               TOOK  BLACKOUT  PHASE\n"
         "      4  1.0 -> 1.1  2025-01-31T09:19:00Z     -     212us  watching, 25s left\n"
         "      3  1.0 -> 1.1  2025-01-31T09:18:00Z   31s     212us  rolled back: worker 2 died\n"
         "      2  1.0 -> 1.1  2025-01-31T09:17:00Z   31s     212us  completed\n"
         "      1  1.0 -> ?    2025-01-31T09:16:00Z   31s         -  failed: worker 2 was not "
         "ready within 30 s\n");
  const Result json = Run({"upgrades", "list", "kv", "-o", "json"});
  EXPECT_THAT(json.out, HasSubstr("\"watch_seconds_left\": 25,"));
}

TEST_F(CliTest, ServiceDescribeShowsTheUpgradeUnderWay) {
  internal::Description description = KvDescription();
  *description.mutable_service()->mutable_upgrade() = KvUpgrade(3, v1::UPGRADE_PHASE_WATCHING);
  keeper_->SetDescription(description);
  EXPECT_THAT(Run({"service", "describe", "kv"}).out,
              HasSubstr("\nUpgrade:              3, 1.0 -> 1.1, watching, 25s left\n"));
}

TEST_F(CliTest, ServiceDescribeShowsThePortAndTheGidOfConnections) {
  internal::Description description = KvDescription();
  v1::DeviceState& state = *description.mutable_service()->mutable_device_state();
  state.set_transport("RoCE");
  state.set_port(1);
  state.set_port_state("active");
  state.set_active_mtu(1024);
  keeper_->SetDescription(description);
  EXPECT_THAT(Run({"service", "describe", "kv"}).out,
              HasSubstr(", RoCE, port 1 active, MTU 1024\n"));
  state.set_gid("1: 10.0.0.1 (RoCE v2)");
  keeper_->SetDescription(description);
  EXPECT_THAT(Run({"service", "describe", "kv"}).out,
              HasSubstr(", RoCE, port 1 active, MTU 1024, GID 1: 10.0.0.1 (RoCE v2)\n"));
}

TEST_F(CliTest, ServiceDescribeShowsTheNetworkNamespaceOfItsListeners) {
  internal::Description description = KvDescription();
  description.mutable_service()->set_network_namespace("blue");
  keeper_->SetDescription(description);
  EXPECT_THAT(Run({"service", "describe", "kv"}).out,
              HasSubstr("\nListeners:            0.0.0.0:7471 in network namespace blue\n"));
  description.mutable_service()->clear_listeners();
  keeper_->SetDescription(description);
  EXPECT_THAT(Run({"service", "describe", "kv"}).out,
              HasSubstr("\nListeners:            none in network namespace blue\n"));
}

TEST_F(CliTest, ServiceDescribeShowsThePagesOfItsBuffers) {
  internal::Description description = KvDescription();
  description.mutable_service()->set_buffer_bytes(16 << 20);
  v1::BufferPages* const pages = description.mutable_service()->mutable_buffer_pages();
  pages->set_asked_bytes(2 << 20);
  pages->set_page_bytes(2 << 20);
  keeper_->SetDescription(description);
  EXPECT_THAT(Run({"service", "describe", "kv"}).out,
              HasSubstr("\nBuffers:              16MiB on huge pages of 2MiB\n"));
  pages->set_page_bytes(0);
  pages->set_why_not("there are none");
  keeper_->SetDescription(description);
  EXPECT_THAT(Run({"service", "describe", "kv"}).out,
              HasSubstr("16MiB on ordinary pages, not on huge pages of 2MiB: there are none"));
}

TEST_F(CliTest, Events) {
  LogAndAwait(KvEvent(1, "worker_attached", "kv-old"));
  LogAndAwait(KvEvent(2, "shard_moved", "to \x1b[31mkv-old"));  // no terminal is told colours
  Expect({"events", "kv"},
         "2025-01-31T09:15:00.000001Z  kv            worker_attached       kv-old  worker=1 "
         "shard=0\n"
         "2025-01-31T09:15:00.000002Z  kv            shard_moved           to ?[31mkv-old  "
         "worker=1 shard=0\n");
}

TEST_F(CliTest, EventsAsJsonAreOneObjectPerLine) {
  LogAndAwait(KvEvent(1, "worker_attached", "kv-old"));
  Expect({"-o", "json", "events", "kv"},
         R"({"sequence":"1","service":"kv","unix_micros":"1738314900000001",)"
         R"("kind":"worker_attached","message":"kv-old","worker_id":"1","shard":0,)"
         R"("connection":-1})"
         "\n");
}

TEST_F(CliTest, EventsGoOnWhenControlIsBackAndAreToldOnce) {
  keeper_->Log(KvEvent(1, "worker_attached", "kv-old"));
  SharedText out, err;
  auto code = FollowEvents(&out, &err, {});
  ASSERT_TRUE(WaitFor(out, "kv-old"));
  control_.reset();
  ASSERT_TRUE(WaitFor(err, "trying again"));
  keeper_->Log(KvEvent(2, "worker_dead", "while control was away"));
  StartControl();
  ASSERT_TRUE(WaitFor(out, "while control was away"));
  keeper_->Log(KvEvent(3, "worker_ready", "kv-new"));
  ASSERT_TRUE(WaitFor(out, "kv-new"));
  // A keeper that was started anew counts from 1 again.
  v1::Event anew = KvEvent(1, "worker_attached", "after the keeper's death");
  anew.set_unix_micros(anew.unix_micros() + 1'000'000);
  keeper_->Log(anew);
  ASSERT_TRUE(WaitFor(out, "after the keeper's death"));
  // It goes on until it learns that there is nothing to follow any more.
  config_.clear_services();
  StartControl();
  EXPECT_EQ(code.get(), kExitNotFound);
  EXPECT_THAT(err.text(), StartsWith("lost the stream of events: "));
  EXPECT_THAT(err.text(), HasSubstr("; trying again\nconnected again\nlost the stream of events"));
  const std::string events = out.text();
  EXPECT_EQ(std::count(events.begin(), events.end(), '\n'), 4) << events;
}

TEST_F(CliTest, EventsEndWithControlWhenAskedTo) {
  keeper_->Log(KvEvent(1, "worker_attached", "kv-old"));
  SharedText out, err;
  auto code = FollowEvents(&out, &err, {"--no-reconnect"});
  ASSERT_TRUE(WaitFor(out, "kv-old"));
  control_.reset();
  EXPECT_EQ(code.get(), kExitUnreachable);
  EXPECT_THAT(err.text(), StartsWith("error: "));
}

TEST_F(CliTest, JsonIsTheWholeAnswerWithItsOwnFieldNames) {
  SetHandoffReply();
  Expect({"handoff", "kv", "-o", "json"}, R"({
 "version": {
  "release": "0.1.0",
  "layout_version": 2,
  "protocol_version": 1
 },
 "to_worker_id": "2",
 "shards": [
  0,
  1
 ],
 "slowest_blackout_us": 1234.5
}
)");
  const Result shard = Run({"--output", "json", "shard", "describe", "kv", "1"});
  EXPECT_THAT(shard.out, HasSubstr("\"owner_worker_id\": \"0\""));  // what is zero is told, too
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"status"},
                                             {"service", "list"},
                                             {"service", "describe", "kv"},
                                             {"worker", "list", "kv"},
                                             {"worker", "describe", "kv", "1"},
                                             {"worker", "kill", "kv", "1", "--yes"},
                                             {"shard", "list", "kv"},
                                             {"connection", "list", "kv"},
                                             {"connection", "describe", "kv", "0"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"-o", "json"});
    const Result result = Run(arguments);
    EXPECT_EQ(result.code, kExitOk) << result.err;
    EXPECT_THAT(result.out, StartsWith("{\n \"version\": {\n  \"release\": \"0.1.0\""));
    EXPECT_THAT(result.out, EndsWith("}\n"));
  }
}

TEST_F(CliTest, Version) {
  Expect({"version"}, "Client:  0.1.0\nServer:  0.1.0 (layout 2, protocol 1)\n");
  Expect({"version", "-o", "json"},
         "{\"client_release\":\"0.1.0\",\"server\":{\"release\":\"0.1.0\",\"layout_version\":2,"
         "\"protocol_version\":1}}\n");
  control_.reset();
  const Result alone = Run({"version", "--timeout", "0.2"});
  EXPECT_EQ(alone.code, kExitUnreachable);
  EXPECT_EQ(alone.out, "Client:  0.1.0\nServer:  unreachable\n");
}

TEST_F(CliTest, TheSocketIsFoundByOptionEnvironmentAndStateDirectory) {
  EXPECT_EQ(RunBare({"--socket", state_dir_ + "/operator.sock", "status"}).code, kExitOk);
  setenv("BATON_SOCKET", (state_dir_ + "/operator.sock").c_str(), 1);
  EXPECT_EQ(RunBare({"status"}).code, kExitOk);
  setenv("BATON_SOCKET", (state_dir_ + "/nowhere.sock").c_str(), 1);
  EXPECT_EQ(RunBare({"status"}).code, kExitUnreachable);
  EXPECT_EQ(Run({"status"}).code, kExitOk);  // what is typed counts more
  unsetenv("BATON_SOCKET");
  EXPECT_EQ(RunBare({"--socket", std::string(200, 'x'), "status"}).code, kExitUsage);
}

TEST_F(CliTest, NobodyThereIsUnreachable) {
  const std::string nowhere = state_dir_ + "/nowhere.sock";
  Result result = RunBare({"--socket", nowhere, "status"});
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "error: cannot reach batond at " + nowhere +
                            ": No such file or directory (errno 2); is it running? `batond "
                            "--dev` starts one; --state-dir or --socket choose another\n");
  control_.reset();  // leaves its socket
  result = Run({"status", "--timeout", "0.2"});
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_THAT(result.err, HasSubstr("Connection refused"));
}

TEST_F(CliTest, AControlThatIsBeingRestartedIsWaitedFor) {
  control_.reset();
  auto result = std::async(std::launch::async, [this] { return Run({"status"}); });
  EXPECT_EQ(result.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  StartControl();
  const Result status = result.get();
  EXPECT_EQ(status.code, kExitOk) << status.err;
  EXPECT_EQ(status.err, "");
}

TEST_F(CliTest, ALookThatControlDidNotAnswerIsMadeAgain) {
  keeper_->SetAnswering(false);
  auto result = std::async(std::launch::async, [this] { return Run({"shard", "list", "kv"}); });
  ASSERT_TRUE(keeper_->WaitForRequest([](const auto& r) { return r.has_describe(); }));
  control_.reset();
  keeper_->SetAnswering(true);
  StartControl();
  const Result shards = result.get();
  EXPECT_EQ(shards.code, kExitOk) << shards.err;
}

TEST_F(CliTest, AKeeperThatIsGoneIsUnreachable) {
  const Result result = Run({"shard", "list", "nvme"});
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_THAT(result.err, HasSubstr("nvme.keeper.sock"));
}

TEST_F(CliTest, NotFound) {
  EXPECT_EQ(Run({"service", "describe", "shop"}).code, kExitNotFound);
  EXPECT_EQ(Run({"worker", "describe", "kv", "77"}).code, kExitNotFound);
  EXPECT_EQ(Run({"connection", "describe", "kv", "77"}).code, kExitNotFound);
  EXPECT_EQ(Run({"events", "shop"}).code, kExitNotFound);
  const Result result = Run({"shard", "describe", "kv", "2"});
  EXPECT_EQ(result.code, kExitNotFound);
  EXPECT_EQ(result.err, "error: service \"kv\" has no shard 2: it has 2, numbered from 0\n");
}

TEST_F(CliTest, TimedOut) {
  keeper_->SetAnswering(false);
  const Result result = Run({"--timeout", "0.2", "shard", "list", "kv"});
  EXPECT_EQ(result.code, kExitTimedOut);
  EXPECT_THAT(result.err, EndsWith("; --timeout gives more\n"));
}

TEST_F(CliTest, Failed) {
  internal::ManagementReply reply;
  reply.set_status_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  reply.set_status_message("no worker is ready: start one");
  keeper_->SetHandoff(reply);
  const Result result = Run({"handoff", "kv"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_EQ(result.err, "error: no worker is ready: start one\n");
}

TEST_F(CliTest, BadUsage) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"sing"},
           {"service"},
           {"service", "describe"},
           {"worker", "describe", "kv", "x"},
           {"shard", "describe", "kv", "-1"},
           {"connection", "list", "kv", "--shard", "-1"},
           {"handoff", "kv", "--to", "0"},
           {"worker", "stop", "kv"},
           {"worker", "stop", "kv", "1", "--wait-timeout", "0"},
           {"events", "--no-reconnect"},
           {"upgrade", "kv"},
           {"upgrade", "kv", "--exec", "/bin/true", "extra"},
           {"upgrade", "--exec", "/bin/true", "--", "kv"},
           {"upgrade", "kv", "--exec", "/x", "--workers", "0"},
           {"upgrade", "kv", "--exec", "/x", "--watch-window", "0"},
           {"rollback"},
           {"rollback", "kv", "--", "extra"},
           {"upgrades", "list"},
           {"-o", "yaml", "status"},
           {"--timeout", "0", "status"},
           {"status", "extra"}}) {
    const Result result = Run(arguments);
    EXPECT_EQ(result.code, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
}

TEST_F(CliTest, HelpTellsTheExitCodes) {
  const Result result = RunBare({"--help"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.out, HasSubstr("3 Baton unreachable"));
  EXPECT_THAT(result.out, HasSubstr("6 timed out"));
  EXPECT_THAT(RunBare({"handoff", "--help"}).out, HasSubstr("others: see `baton --help`"));
  EXPECT_EQ(RunBare({"--version"}).out, "baton 0.1.0\n");
}

TEST_F(CliTest, HelpTellsTheCommandsAndTheirOptions) {
  EXPECT_THAT(RunBare({"--help"}).out, HasSubstr("  worker      Workers: processes"));
  EXPECT_THAT(RunBare({"worker", "--help"}).out,
              HasSubstr("  kill      Kill a worker's process with SIGKILL\n"));
  EXPECT_THAT(RunBare({"worker", "stop", "--help"}).out,
              HasSubstr("  --wait-timeout S  seconds that it has to end [10]\n"));
  EXPECT_THAT(RunBare({"upgrade", "--help"}).out,
              HasSubstr("baton upgrade [SERVICE] --exec PATH [-- ARGUMENTS]"));
}

TEST_F(CliTest, BadUsageIsToldWithWhatWasProbablyMeant) {
  EXPECT_THAT(Run({"servce", "list"}).err, HasSubstr("did you mean \"service\"?"));
  EXPECT_THAT(Run({"worker", "lst"}).err,
              HasSubstr("did you mean \"list\"?; there are: list, describe, stop, kill\n"));
  EXPECT_THAT(Run({"status", "--no-header"}).err, HasSubstr("did you mean \"--no-headers\"?"));
  EXPECT_THAT(Run({"service"}).err, StartsWith("error: a command is missing after"));
  EXPECT_THAT(Run({"service", "describe", "kw"}).err,
              EndsWith("; there are: kv, nvme; did you mean \"kv\"?\n"));
}

// ---------------------------------------------------------------- what may be left out

// Where "kv" is the only service.
class OneServiceTest : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    config_.clear_services();
    config_.add_services("kv");
    StartControl();
  }

  // Expects both command lines to print the same.
  void ExpectSame(const std::vector<std::string>& shorter, const std::vector<std::string>& longer) {
    const Result one = Run(shorter), other = Run(longer);
    EXPECT_EQ(one.code, kExitOk) << one.err;
    EXPECT_EQ(one.out, other.out);
    EXPECT_EQ(one.err, other.err);
    EXPECT_NE(one.out, "");
  }
};

TEST_F(OneServiceTest, ItsNameMayBeLeftOutByThoseThatLook) {
  ExpectSame({"service", "describe"}, {"service", "describe", "kv"});
  ExpectSame({"service", "policy"}, {"service", "policy", "kv"});
  ExpectSame({"shard", "list"}, {"shard", "list", "kv"});
  ExpectSame({"shard", "describe", "1"}, {"shard", "describe", "kv", "1"});
  ExpectSame({"worker", "describe", "2"}, {"worker", "describe", "kv", "2"});
  ExpectSame({"connection", "list"}, {"connection", "list", "kv"});
  ExpectSame({"connection", "describe", "5"}, {"connection", "describe", "kv", "5"});
  keeper_->SetUpgrades({KvUpgrade(2, v1::UPGRADE_PHASE_COMPLETED)});
  ExpectSame({"upgrades", "list"}, {"upgrades", "list", "kv"});
}

TEST_F(OneServiceTest, ThoseThatChangeItSayThatTheyTookIt) {
  SetHandoffReply();
  const Result handoff = Run({"handoff"});
  EXPECT_EQ(handoff.code, kExitOk) << handoff.err;
  EXPECT_EQ(handoff.err, "service kv, the only one\n");
  EXPECT_EQ(Run({"handoff", "-o", "json"}).err, "");
  EXPECT_EQ(Run({"worker", "kill", "2", "--yes"}).err,
            "service kv, the only one\nworker 2 of service kv was sent SIGKILL\n");
  keeper_->PlanUpgrade({KvUpgrade(1, v1::UPGRADE_PHASE_STARTING)});
  EXPECT_EQ(Run({"upgrade", "--exec", Program(), "--no-wait"}).err, "service kv, the only one\n");
}

TEST_F(OneServiceTest, SaysWhatToNameWhereThereAreSeveral) {
  Result result = Run({"shard", "describe"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(result.err, "error: name a shard of service kv: 0 to 1\n");
  EXPECT_EQ(Run({"worker", "describe"}).err, "error: name a worker of service kv: 1, 2\n");
  EXPECT_THAT(Run({"connection", "describe"}).err, HasSubstr("`baton connection list kv`"));
  result = Run({"worker", "kill", "--yes"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("name a worker of service kv"));
  EXPECT_EQ(Run({"shard", "describe", "7"}).code, kExitNotFound);
}

TEST_F(OneServiceTest, NobodyDrainsItWithoutItsName) {
  const Result result = Run({"drain"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(result.err, "error: name one SERVICE, or give --all; there are: kv\n");
}

TEST_F(CliTest, SeveralServicesAreListedWhereNoneIsNamed) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"shard", "list"},
                                             {"shard", "describe", "0"},
                                             {"worker", "kill", "2", "--yes"},
                                             {"handoff"},
                                             {"rollback"}}) {
    const Result result = Run(command);
    EXPECT_EQ(result.code, kExitUsage) << ::testing::PrintToString(command);
    EXPECT_EQ(result.err, "error: name a service: there are kv, nvme\n");
  }
}

// ---------------------------------------------------------------- what one waits for

TEST_F(CliTest, SaysWhatItWaitsForWhenThatTakesLong) {
  keeper_->SetAnswering(false);
  const auto handoff = [&](const std::string& format) {
    std::istringstream in;
    std::ostringstream out, err;
    RunCli({"--state-dir", state_dir_, "--timeout", "2", "handoff", "kv", "--wait-timeout", "0.1",
            "-o", format},
           Console{.in = in, .out = out, .err = err, .patience_seconds = 0});
    return err.str();
  };
  EXPECT_THAT(handoff("table"), StartsWith("handing over service kv: "));
  EXPECT_THAT(handoff("json"), StartsWith("error: "));
}

TEST_F(CliTest, TellsWhetherTheRecordOfChangesIsAsItWasWritten) {
  ASSERT_EQ(Run({"worker", "kill", "kv", "2", "--yes"}).code, kExitOk);
  const std::string path = state_dir_ + "/audit.log";
  const Result whole = Run({"audit", "--verify"});
  EXPECT_EQ(whole.code, kExitOk) << whole.err;
  EXPECT_THAT(whole.out, StartsWith(path + ": 2 records in 1 files are as they were written"));
  const std::string last = whole.out.substr(whole.out.rfind(' ') + 1, 64);
  EXPECT_EQ(Run({"audit", "--verify", "--expect", last}).code, kExitOk);
  const Result missing = Run({"audit", "--verify", "--expect", std::string(64, '0')});
  EXPECT_EQ(missing.code, kExitFailed);
  EXPECT_THAT(missing.err, HasSubstr("no record has the hash 000"));

  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::string changed = text.str();
  changed.replace(changed.rfind("\"OK\""), 4, "\"KO\"");
  const std::string copy = state_dir_ + "/copy.log";
  std::ofstream(copy) << changed;
  const Result broken = Run({"audit", "--verify", "--file", copy});
  EXPECT_EQ(broken.code, kExitFailed);
  EXPECT_THAT(broken.err, HasSubstr(copy + ":2: is not what was written"));
  EXPECT_THAT(Run({"audit", "--file", copy}).err, HasSubstr("--verify"));
}

}  // namespace
}  // namespace baton
