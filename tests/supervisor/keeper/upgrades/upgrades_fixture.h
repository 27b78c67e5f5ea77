// A keeper without a control, whose workers are real processes (upgrade_worker.cc).
#ifndef TESTS_SUPERVISOR_KEEPER_UPGRADES_UPGRADES_FIXTURE_H_
#define TESTS_SUPERVISOR_KEEPER_UPGRADES_UPGRADES_FIXTURE_H_

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper::testing {

using Options = std::vector<std::string>;

class UpgradesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = harness::Binaries().Find("upgrade_worker").value();
    keeper_.SetLauncher(harness::Binaries().Find("baton-launch").value());
  }

  void StartKeeper(const KeeperThread::Change& change = nullptr) {
    ASSERT_EQ(keeper_.Start([&](v1::ServiceConfig* service) {
      service->set_shards(3);
      service->set_max_workers(6);
      service->set_heartbeat_ms(20);
      service->set_hang_timeout_ms(1'500);
      service->set_ready_timeout_ms(20'000);
      service->set_watch_window_ms(200);
      service->set_stop_timeout_ms(20'000);
      if (change) change(service);
    }),
              absl::OkStatus());
  }

  // The service has a worker of version 1.
  void StartService(const KeeperThread::Change& change = nullptr) {
    StartKeeper(change);
    StartWorker({"--program-version", "1"});
  }

  // Starts a keeper whose launcher is a shell script, and a worker of version 1. `body` makes the
  // script from the path of the real launcher and from a line that waits until fifo_ is written.
  void StartKeeperWithLauncher(
      const std::function<std::string(const std::string& real, const std::string& wait)>& body) {
    fifo_ = keeper_.directory().File("fifo");
    ASSERT_EQ(mkfifo(fifo_.c_str(), 0600), 0);
    const std::string launcher = keeper_.directory().File("launcher");
    std::ofstream(launcher) << "#!/bin/sh\n"
                            << body(harness::Binaries().Find("baton-launch").value(),
                                    "read word <" + fifo_);
    std::filesystem::permissions(launcher, std::filesystem::perms::all);
    keeper_.SetLauncher(launcher);
    StartService();
  }

  // The worker that was there before: started as an operator would.
  void StartWorker(const Options& options) {
    harness::ChildOptions child;
    child.program = program_;
    child.arguments = Arguments(options);
    auto started = harness::ChildProcess::Start(child);
    ASSERT_TRUE(started.ok()) << started.status();
    const int ready = ReadyWorkers() + 1;
    worker_ = *std::move(started);
    ASSERT_EQ(harness::WaitUntil("a worker to be ready", [&] { return ReadyWorkers() == ready; }),
              absl::OkStatus());
  }

  Options Arguments(const Options& options) const {
    Options arguments = {"--socket", keeper_.socket()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return arguments;
  }

  int ReadyWorkers() { return static_cast<int>(keeper_.Describe().service().ready_workers()); }

  v1::UpgradePlan Plan(const Options& options) const {
    v1::UpgradePlan plan;
    plan.set_exec(program_);
    plan.set_replace_arguments(true);
    for (const std::string& argument : Arguments(options)) plan.add_arguments(argument);
    return plan;
  }

  // The keeper answers with the upgrade that it has begun.
  absl::StatusOr<v1::Upgrade> Begun(internal::ManagementRequest request) {
    const auto reply = keeper_.Ask(std::move(request));
    if (!reply.ok()) return reply.status();
    return reply->upgrades(0);
  }

  absl::StatusOr<v1::Upgrade> Upgrade(const v1::UpgradePlan& plan) {
    internal::ManagementRequest request;
    *request.mutable_upgrade() = plan;
    return Begun(std::move(request));
  }

  absl::StatusOr<v1::Upgrade> Rollback() {
    internal::ManagementRequest request;
    request.mutable_rollback();
    return Begun(std::move(request));
  }

  absl::StatusOr<v1::Upgrade> Hold(bool pause) {
    internal::ManagementRequest request;
    if (pause) {
      request.mutable_pause_upgrade();
    } else {
      request.mutable_resume_upgrade();
    }
    return Begun(std::move(request));
  }

  v1::UpgradePlan CanaryPlan(const Options& options, const std::vector<uint32_t>& shards) const {
    v1::UpgradePlan plan = Plan(options);
    plan.mutable_canary_shards()->Add(shards.begin(), shards.end());
    return plan;
  }

  // By shard.
  std::vector<std::string> OwnersVersions() {
    const internal::Description description = keeper_.Describe();
    std::vector<std::string> versions;
    for (const v1::Shard& shard : description.shards()) {
      versions.emplace_back();
      for (const v1::Worker& worker : description.workers()) {
        if (worker.id() == shard.owner_worker_id()) versions.back() = worker.version();
      }
    }
    return versions;
  }

  v1::Upgrade Newest() {
    internal::ManagementRequest request;
    request.mutable_list_upgrades();
    const auto reply = keeper_.Ask(std::move(request));
    return reply.ok() && reply->upgrades_size() > 0 ? reply->upgrades(0) : v1::Upgrade();
  }

  v1::Upgrade AwaitPhase(v1::UpgradePhase phase) {
    v1::Upgrade upgrade;
    const absl::Status reached = harness::WaitUntil(
        v1::UpgradePhase_Name(phase),
        [&] {
          upgrade = Newest();
          return upgrade.phase() == phase || upgrade.ended_unix_micros() != 0;
        },
        std::chrono::seconds(40));
    EXPECT_EQ(reached, absl::OkStatus()) << upgrade.DebugString();
    EXPECT_EQ(upgrade.phase(), phase) << upgrade.DebugString();
    return upgrade;
  }

  v1::Upgrade UpgradeTo(const Options& options, v1::UpgradePhase end) {
    const auto started = Upgrade(Plan(options));
    EXPECT_TRUE(started.ok()) << started.status();
    return AwaitPhase(end);
  }

  // The version of the program that owns every shard; empty: not all have the same.
  std::string OwnersVersion() {
    const std::vector<std::string> all = OwnersVersions();
    const std::set<std::string> different(all.begin(), all.end());
    return different.size() == 1 ? *different.begin() : "";
  }

  int AttachedWorkers() { return keeper_.Describe().workers_size(); }

  // Kills the worker that the upgrade under way has replaced by one other.
  void KillOldWorker() {
    ASSERT_EQ(worker_->Kill(), absl::OkStatus());
    ASSERT_EQ(harness::WaitUntil("its death", [&] { return AttachedWorkers() == 1; }),
              absl::OkStatus());
  }

  // Waits until the upgrade is undone and expects that one worker, the old program's, is left.
  void ExpectReturnToTheOldWorker() {
    AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK);
    EXPECT_EQ(OwnersVersion(), "1");
    EXPECT_EQ(AttachedWorkers(), 1);
  }

  KeeperThread keeper_;
  std::string program_;
  std::string fifo_;
  std::unique_ptr<harness::ChildProcess> worker_;
};

}  // namespace baton::keeper::testing

#endif  // TESTS_SUPERVISOR_KEEPER_UPGRADES_UPGRADES_FIXTURE_H_
