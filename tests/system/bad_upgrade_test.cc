// An upgrade to a program that is no good undoes itself, with control there and without.
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/operator_client.h"
#include "tests/system/upgrade_fixture.h"

namespace baton::upgrade {
namespace {

using testing::HasSubstr;

enum class Control : uint8_t { kThere, kStopped, kKilled };

struct BadProgram {
  std::string fault;
  v1::UpgradePhase end;
  std::string reason;  // part of it
};

// Returns the child of `parent` whose program is called `name`, or 0 if there is none.
pid_t FindChild(pid_t parent, const std::string& name) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    // proc(5): "pid (comm) state ppid …", with comm cut off after 15 bytes.
    const size_t open = line.find('('), close = line.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;
    if (line.substr(open + 1, close - open - 1) != name.substr(0, 15)) continue;
    if (std::atoi(line.c_str() + close + 4) == parent) return std::atoi(line.c_str());
  }
  return 0;
}

class BadUpgradeTest : public UpgradeTest {
 protected:
  // Asks the keeper as control would, because control may be away.
  absl::StatusOr<v1::Upgrade> AskKeeper(uint64_t id) {
    if (!keeper_) {
      BATON_ASSIGN_OR_RETURN(
          keeper_, harness::KeeperView::Connect(cluster_->directory() + "/state", "ledger"));
    }
    BATON_ASSIGN_OR_RETURN(const std::vector<v1::Upgrade> upgrades, keeper_->ListUpgrades());
    for (const v1::Upgrade& upgrade : upgrades) {
      if (upgrade.id() == id) return upgrade;
    }
    return absl::NotFoundError("the upgrade");
  }

  absl::StatusOr<v1::Upgrade> WaitForEndInKeeper(uint64_t id) {
    absl::StatusOr<v1::Upgrade> upgrade;
    const absl::Status ended = harness::WaitUntil(
        "the end of the upgrade",
        [&] {
          upgrade = AskKeeper(id);
          return upgrade.ok() && upgrade->ended_unix_micros() != 0;
        },
        std::chrono::seconds(60));
    if (!ended.ok() && upgrade.ok()) {
      return absl::Status(ended.code(), upgrade->ShortDebugString());
    }
    return ended.ok() ? upgrade : ended;
  }

  std::unique_ptr<harness::KeeperView> keeper_;
};

// Kills control whenever batond has started it, until it is destroyed.
class ControlKiller {
 public:
  explicit ControlKiller(pid_t batond)
      : thread_([this, batond] {
          while (!stop_) {
            const pid_t control = FindChild(batond, "baton-control");
            if (control != 0) kills_ += kill(control, SIGKILL) == 0 ? 1 : 0;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }) {}
  ~ControlKiller() { Stop(); }
  ControlKiller(const ControlKiller&) = delete;
  ControlKiller& operator=(const ControlKiller&) = delete;

  int Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return kills_;
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> kills_{0};
  std::thread thread_;
};

class UndoneUpgrade : public BadUpgradeTest,
                      public testing::WithParamInterface<std::tuple<BadProgram, Control>> {};

TEST_P(UndoneUpgrade, shouldLeaveTheOldProgramServing) {
  const auto& [bad, control_is] = GetParam();
  ASSERT_NO_FATAL_FAILURE(Start());
  harness::UpgradeOptions options = ToFaulty({"--fault", bad.fault});
  // Long enough for a busy machine to start a program; what never is ready has to be waited for.
  const bool waits = bad.fault == "unhealthy" || bad.fault == "never-ready";
  options.plan.set_ready_timeout_ms(waits ? 3000 : kLongMs);
  const auto status = cluster_->operators().GetStatus();
  ASSERT_OK(status);
  const auto started = cluster_->StartUpgrade(options);
  ASSERT_OK(started);

  std::unique_ptr<ControlKiller> killer;
  const bool stopped = control_is == Control::kStopped;
  ASSERT_EQ(stopped ? kill(status->control_pid(), SIGSTOP) : 0, 0);
  if (control_is == Control::kKilled) {
    killer = std::make_unique<ControlKiller>(cluster_->batond().pid());
  }
  const auto ended = WaitForEndInKeeper(started->id());
  ASSERT_OK(ended);
  EXPECT_EQ(ended->phase(), bad.end) << ended->ShortDebugString();
  EXPECT_THAT(ended->detail(), HasSubstr(bad.reason));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ASSERT_EQ(stopped ? kill(status->control_pid(), SIGCONT) : 0, 0);
  if (killer) {
    EXPECT_GT(killer->Stop(), 0);
  }

  // Control knows what has happened while it was away.
  const auto told = cluster_->WaitUntilUpgradeEnds(started->id());
  ASSERT_OK(told);
  EXPECT_EQ(told->phase(), bad.end);
  ASSERT_NO_FATAL_FAILURE(ExpectWorkers({first_->id}));
  EXPECT_TRUE(cluster_->OwnsAllShards(first_->id));
  EXPECT_FALSE(first_->process->HasEnded());
  // And the next one, which is good, is none the worse for it.
  ASSERT_NO_FATAL_FAILURE(Upgrade(To("ledger-v2"), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ExpectNothingLost();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, UndoneUpgrade,
    testing::Combine(
        testing::Values(BadProgram{"crash", v1::UPGRADE_PHASE_ROLLED_BACK, "signal 9"},
                        BadProgram{"hang", v1::UPGRADE_PHASE_ROLLED_BACK, "no sign of life"},
                        BadProgram{"turn-unhealthy", v1::UPGRADE_PHASE_ROLLED_BACK, "unhealthy"},
                        BadProgram{"unhealthy", v1::UPGRADE_PHASE_FAILED, "unhealthy"},
                        BadProgram{"never-ready", v1::UPGRADE_PHASE_FAILED, "not ready"},
                        BadProgram{"refuse", v1::UPGRADE_PHASE_ROLLED_BACK, ""}),
        testing::Values(Control::kThere, Control::kStopped, Control::kKilled)),
    [](const auto& info) {
      std::string name = std::get<0>(info.param).fault;
      std::replace(name.begin(), name.end(), '-', '_');
      switch (std::get<1>(info.param)) {
        case Control::kThere:
          return name;
        case Control::kStopped:
          return name + "_control_stopped";
        case Control::kKilled:
          return name + "_control_killed";
      }
      return name;
    });

TEST_F(BadUpgradeTest, shouldRefuseWhatCannotBeStarted) {
  ASSERT_NO_FATAL_FAILURE(Start());
  v1::UpgradePlan plan;
  const auto refusal = [&](const std::string& path) {
    plan.set_exec(path);
    const auto refused = cluster_->operators().Upgrade("ledger", plan);
    EXPECT_FALSE(refused.ok()) << path;
    return refused.status().ToString();
  };
  const std::string file = cluster_->directory() + "/file";
  std::ofstream(file) << "not a program\n";
  EXPECT_THAT(refusal(cluster_->directory() + "/nowhere"), HasSubstr("No such file"));
  EXPECT_THAT(refusal(file), HasSubstr(file));
  EXPECT_THAT(refusal(cluster_->directory()), HasSubstr(cluster_->directory()));
  EXPECT_THAT(refusal("ledger-v2"), HasSubstr("absolute"));
  // A file with the permission that is no program after all.
  ASSERT_EQ(chmod(file.c_str(), 0755), 0);
  EXPECT_THAT(refusal(file), HasSubstr(file));
  // None of them was begun.
  const auto list = cluster_->operators().ListUpgrades("ledger");
  ASSERT_OK(list);
  EXPECT_TRUE(list->upgrades().empty());
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(BadUpgradeTest, shouldFailWhenTheProgramEndsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Start());
  v1::UpgradePlan plan;
  plan.set_exec("/bin/false");
  const auto started = cluster_->operators().Upgrade("ledger", plan);
  ASSERT_OK(started);
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(started->upgrade().id(), v1::UPGRADE_PHASE_FAILED, &upgrade));
  EXPECT_THAT(upgrade.detail(), HasSubstr("status 1"));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(BadUpgradeTest, shouldFailWhenTheProgramServesAnotherService) {
  ASSERT_NO_FATAL_FAILURE(Start());
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(
      Upgrade(ToFaulty({"--service", "another"}), v1::UPGRADE_PHASE_FAILED, &upgrade));
  EXPECT_THAT(upgrade.detail(), HasSubstr("before it was ready"));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(BadUpgradeTest, shouldFailWhenNoWorkerRunsWhosePlaceCouldBeTaken) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectNothingLost();
  ASSERT_OK(first_->process->Terminate(kTimeout));
  ASSERT_OK(cluster_->WaitUntilGone(first_->id));
  const auto refused = cluster_->StartUpgrade(To("ledger-v2"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace baton::upgrade
