// All of Baton but the driver is replaced under load, by programs of another release and by ones
// that do not serve.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/version.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::Cluster;
using harness::ClusterOptions;
using harness::PeerOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kFails[] = "#!/bin/sh\nexit 3\n";
// Releases as long as ours.
constexpr char kOther[] = "0.9.1";
constexpr char kThird[] = "0.9.2";
constexpr char kDriverCode[] = "libbaton-driver.so";

class BatonUpgradeTest : public harness::ClusterFixture {
 protected:
  void Start(std::vector<std::string> batond_arguments = {}) {
    ClusterOptions options;
    options.own_programs = true;
    options.batond_arguments = std::move(batond_arguments);
    // An older build does not know the option.
    if (std::getenv("BATON_OTHER_BIN") != nullptr) options.yield_microseconds = 0;
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
    for (const std::string name : {"baton-keeper", "baton-control", "batond", kDriverCode}) {
      own_[name] = harness::ReadFile(cluster_->libexec() + "/" + name);
    }
    ASSERT_OK_AND_ASSIGN(owner_, cluster_->StartLedger(1));
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(harness::SteadyLoad()));
    ASSERT_OK(peer_->Settle());
    driver_ = Status().services(0).driver_pid();
  }
  void TearDown() override {
    if (peer_) harness::ExpectNothingLost(*peer_);
    ClusterFixture::TearDown();
  }

  v1::GetStatusResponse Status() {
    absl::StatusOr<v1::GetStatusResponse> status;
    EXPECT_OK(harness::WaitUntil("control and its keeper", [&] {
      status = cluster_->operators().GetStatus();
      return status.ok() && status->services_size() > 0 && status->services(0).reachable();
    }));
    return status.value_or(v1::GetStatusResponse());
  }
  // Returns whether batond runs the file that is at its path now.
  bool BatondIsOfItsFile() {
    const std::string running = absl::StrCat("/proc/", cluster_->batond().pid(), "/exe");
    std::error_code none;
    return std::filesystem::equivalent(running, cluster_->libexec() + "/batond", none);
  }
  harness::CommandResult Upgrade(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"upgrade", "--baton", "--watch-window", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return harness::RunBaton(*cluster_, arguments);
  }
  // Replaces the workers' program, and returns how that ended.
  v1::UpgradePhase UpgradeWorkers() {
    harness::UpgradeOptions options;
    options.program = "ledger-v2";
    options.plan.set_watch_window_ms(300);
    const auto started = cluster_->StartUpgrade(options);
    if (!started.ok()) return v1::UPGRADE_PHASE_UNSPECIFIED;
    const auto ended = cluster_->WaitUntilUpgradeEnds(started->id());
    EXPECT_OK(ended);
    return ended.ok() ? ended->phase() : v1::UPGRADE_PHASE_UNSPECIFIED;
  }
  // Returns the broker that drives then.
  pid_t AwaitBroker(pid_t former) {
    pid_t next = 0;
    EXPECT_OK(harness::WaitUntil("another broker", [&] {
      next = Status().services(0).broker_pid();
      return next != 0 && next != former;
    }));
    return next;
  }
  void KillBroker(int signal) {
    const pid_t broker = AwaitBroker(0);
    ASSERT_EQ(kill(broker, signal), 0);
    AwaitBroker(broker);
  }
  // The service's broker is replaced, and something happens to the next one on probation.
  void ReplaceTheBrokerAndKill(int signal) {
    const pid_t former = AwaitBroker(0);
    ASSERT_OK(cluster_->operators().ReplaceDriverCode("ledger"));
    const pid_t next = AwaitBroker(former);
    EXPECT_EQ(Status().services(0).driver_code_release(), kOther);
    ASSERT_EQ(kill(next, signal), 0);
    AwaitBroker(next);
    EXPECT_OK(harness::WaitUntil("the new code to be given up", [&] {
      return !Status().services(0).driver_code_given_up().empty();
    }));
    EXPECT_EQ(Status().services(0).driver_code_release(), kRelease);
  }
  void Install(const std::string& name, const std::string& program) {
    harness::InstallProgram(cluster_->libexec() + "/" + name, program);
  }
  // Another build's program, or the first one, but for what it calls its release.
  // The bar baton-upgrade-builds has another build.
  void InstallOtherRelease(const std::string& name) {
    const char* const build = std::getenv("BATON_OTHER_BIN");
    const std::string other = build == nullptr ? "" : absl::StrCat(build, "/", name);
    // Former releases have no code of drivers.
    InstallAs(kOther, name, std::filesystem::exists(other) ? harness::ReadFile(other) : own_[name]);
  }
  void InstallAs(const char* release, const std::string& name, const std::string& program) {
    const std::string renamed = harness::WithRelease(program, release);
    ASSERT_NE(renamed, "");
    Install(name, renamed);
  }
  // The plan names what would come before it begins, also what only a new driver process brings.
  void ExpectTold() {
    if (std::getenv("BATON_OTHER_BIN") != nullptr) return;  // its files may not tell their release
    const std::string driver = harness::ReadFile(cluster_->libexec() + "/baton-driver");
    ASSERT_NO_FATAL_FAILURE(InstallAs(kOther, "baton-driver", driver));
    const std::string plan = Upgrade({"--dry-run"}).out;
    EXPECT_THAT(plan, HasSubstr("batond 0.9.1, baton-control 0.9.1, baton-keeper 0.9.1, "
                                "baton-driver 0.9.1, libbaton-driver.so 0.9.1"));
    EXPECT_THAT(plan, HasSubstr("would replace the broker of service ledger"));
    EXPECT_THAT(plan, HasSubstr(absl::StrCat("release ", kRelease, ") by release 0.9.1")));
    EXPECT_THAT(plan, HasSubstr("what release 0.9.1 changes in the work of drivers"));
    EXPECT_EQ(Status().services(0).keeper_release(), kRelease);
  }
  void ExpectServedAsBefore() {
    ASSERT_OK(peer_->Settle());
    auto newcomer = cluster_->StartPeer(PeerOptions());
    ASSERT_OK(newcomer);
    harness::ExpectNothingLost(**newcomer);
    EXPECT_EQ(Status().services(0).driver_pid(), driver_);
    EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
    auto next = cluster_->StartLedger(2);
    ASSERT_OK(next);
    ASSERT_OK(cluster_->Handoff((*next)->id));
    ASSERT_OK(cluster_->Handoff(owner_->id));
  }

  std::map<std::string, std::string> own_;  // programs that are there at first, by name
  std::unique_ptr<harness::LedgerWorker> owner_;
  std::unique_ptr<harness::PeerProcess> peer_;
  pid_t driver_ = 0;
};

TEST_F(BatonUpgradeTest, shouldReplaceKeepersControlAndBatondByOtherReleasesAndBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (const auto& [name, program] : own_) ASSERT_NO_FATAL_FAILURE(InstallOtherRelease(name));
  // The files alone change nothing, not even what follows a death.
  ASSERT_EQ(kill(Status().services(0).keeper_pid(), SIGKILL), 0);
  ASSERT_EQ(kill(Status().control_pid(), SIGKILL), 0);
  ASSERT_NO_FATAL_FAILURE(KillBroker(SIGKILL));
  EXPECT_EQ(Status().services(0).driver_code_release(), kRelease);
  EXPECT_EQ(Status().services(0).keeper_release(), kRelease);
  EXPECT_EQ(Status().version().release(), kRelease);
  ASSERT_NO_FATAL_FAILURE(ExpectTold());
  std::vector<std::string> releases = {kOther, kThird, kRelease};
  // Another build has to follow ours a second time, too. To ours, kOther is one more name.
  if (std::getenv("BATON_OTHER_BIN") != nullptr) releases.insert(releases.begin() + 2, kOther);
  for (const std::string& release : releases) {
    for (const auto& [name, program] : own_) {
      if (release == kOther) ASSERT_NO_FATAL_FAILURE(InstallOtherRelease(name));
      if (release == kThird) ASSERT_NO_FATAL_FAILURE(InstallAs(kThird, name, program));
      if (release == kRelease) Install(name, program);
    }
    const harness::CommandResult upgrade = Upgrade();
    EXPECT_EQ(upgrade.status, 0) << upgrade.out << upgrade.err;
    EXPECT_THAT(upgrade.out, HasSubstr("service ledger: keeper replaced"));
    EXPECT_THAT(upgrade.out, HasSubstr("service ledger: broker replaced"));
    EXPECT_EQ(Status().services(0).driver_code_release(), release);
    EXPECT_THAT(upgrade.out, HasSubstr("control replaced"));
    EXPECT_THAT(upgrade.out, HasSubstr("batond replaced"));
    EXPECT_EQ(Status().services(0).keeper_release(), release);
    EXPECT_EQ(Status().version().release(), release);
    EXPECT_TRUE(BatondIsOfItsFile());
    ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
    ASSERT_OK(harness::WaitUntil("the end of batond's probation", [&] {
      return !std::filesystem::exists(cluster_->directory() + "/state/batond.before");
    }));
  }
}

// Nor do files of the programs that keepers and drivers start: what follows their deaths runs those
// of the release that serves.
TEST_F(BatonUpgradeTest, shouldStartWorkersAndNicsOfTheReleaseThatServes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (const char* const name : {"baton-launch", "baton-nic", kDriverCode}) Install(name, kFails);
  ASSERT_NO_FATAL_FAILURE(KillBroker(SIGKILL));
  const pid_t keeper = Status().services(0).keeper_pid();
  ASSERT_EQ(kill(keeper, SIGKILL), 0);
  ASSERT_OK(harness::WaitUntil("the next keeper", [&] {
    const v1::GetStatusResponse status = Status();
    return status.services_size() > 0 && status.services(0).keeper_pid() != keeper;
  }));
  ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
  EXPECT_EQ(UpgradeWorkers(), v1::UPGRADE_PHASE_COMPLETED);
  // The next keeper's launcher is the one that is there now.
  EXPECT_THAT(Upgrade({"ledger"}).err, HasSubstr("is no code of drivers"));
  EXPECT_NE(UpgradeWorkers(), v1::UPGRADE_PHASE_COMPLETED);
  harness::ExpectNothingLost(*peer_);
  peer_.reset();
  // Connections end with the driver where nobody follows it.
  harness::KillUnfollowed(driver_);
  EXPECT_OK(harness::WaitUntil("the next driver and its NIC", [&] {
    const v1::GetStatusResponse status = Status();
    return status.services_size() > 0 && status.services(0).driver_pid() != driver_;
  }));
}

// Under load, which TearDown() checks.
TEST_F(BatonUpgradeTest, shouldGoBackToTheBrokerBefore) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(InstallOtherRelease(kDriverCode));
  for (const int signal : {SIGSEGV, SIGSTOP}) {
    ASSERT_NO_FATAL_FAILURE(ReplaceTheBrokerAndKill(signal));
    ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
  }
  EXPECT_THAT(harness::RunBaton(*cluster_, {"events", "ledger"}).out,
              HasSubstr("driver_code_given_up"));
  // A file that is no such code is found out before the broker ends that drives.
  const pid_t drives = AwaitBroker(0);
  Install(kDriverCode, kFails);
  const harness::CommandResult upgrade = Upgrade({"ledger"});
  EXPECT_EQ(upgrade.status, 1);
  EXPECT_THAT(upgrade.err, HasSubstr("is no code of drivers"));
  EXPECT_EQ(AwaitBroker(0), drives);
  EXPECT_THAT(harness::RunBaton(*cluster_, {"service", "describe", "ledger"}).out,
              HasSubstr("is given up"));
}

// `baton-driver` dies while its broker is on probation, and its twin goes on with that.
TEST_F(BatonUpgradeTest, shouldReplaceDriverCodesAlsoIfTheDriverDies) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(InstallOtherRelease(kDriverCode));
  ASSERT_OK(cluster_->operators().ReplaceDriverCode("ledger"));
  ASSERT_EQ(kill(driver_, SIGKILL), 0);
  ASSERT_OK(harness::WaitUntil("the driver's twin to follow",
                               [&] { return Status().services(0).driver_pid() != driver_; }));
  driver_ = Status().services(0).driver_pid();
  ASSERT_OK(harness::WaitUntil("the next broker, or the former one again",
                               [&] { return Status().services(0).broker_pid() != 0; }));
  ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
}

TEST_F(BatonUpgradeTest, shouldGoBackToTheControlBefore) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Install("baton-control", kFails);
  const harness::CommandResult upgrade = Upgrade();
  EXPECT_EQ(upgrade.status, 1);
  EXPECT_THAT(upgrade.err, HasSubstr("exit code 3"));
  EXPECT_THAT(Status().control_program_given_up(), HasSubstr("exit code 3"));
  EXPECT_THAT(harness::RunBaton(*cluster_, {"status"}).out, HasSubstr("is given up"));
  EXPECT_THAT(harness::RunBaton(*cluster_, {"events"}).out, HasSubstr("control_program_given_up"));
  // The program that served follows its death, too.
  const pid_t control = Status().control_pid();
  ASSERT_EQ(kill(control, SIGKILL), 0);
  ASSERT_OK(harness::WaitUntil("another control", [&] {
    const auto status = cluster_->operators().GetStatus();
    return status.ok() && status->control_pid() != control;
  }));
  ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
}

TEST_F(BatonUpgradeTest, shouldRefuseABatondThatWouldNotRun) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Install("batond", kFails);
  EXPECT_THAT(Upgrade().err, HasSubstr("--check ended with exit code 3"));
  EXPECT_THAT(Status().batond_program_given_up(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(cluster_->directory() + "/state/batond.before"));
  ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
}

// Its control does not start the first time, with which a batond of a strict command line ends.
TEST_F(BatonUpgradeTest, shouldGoBackToTheBatondBeforeWhenTheNextDoesNotServe) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string control = cluster_->libexec() + "/sound-control";
  std::filesystem::copy(cluster_->libexec() + "/baton-control", control);
  ASSERT_NO_FATAL_FAILURE(InstallOtherRelease("batond"));
  const std::string failed = cluster_->directory() + "/failed";
  Install("baton-control", absl::StrCat("#!/bin/sh\n[ -e ", failed, " ] || { touch ", failed,
                                        "; exit 3; }\nexec ", control, "\n"));
  const pid_t batond = cluster_->batond().pid();
  const pid_t former = Status().control_pid();
  ASSERT_OK(cluster_->operators().ReplaceProgram(v1::ReplaceProgramRequest::BATOND));
  // The next batond would go on with a control that lives.
  ASSERT_OK(harness::WaitUntil("the start of the next batond's control", [&] {
    if (const pid_t living = cluster_->ControlPid(); living != 0) kill(living, SIGKILL);
    return std::filesystem::exists(failed);
  }));
  ASSERT_OK(harness::WaitUntil("the control of the batond before", [&] {
    const auto status = cluster_->operators().GetStatus();
    return status.ok() && status->control_pid() != former;
  }));
  EXPECT_THAT(Status().batond_program_given_up(), HasSubstr("exit code 3"));
  EXPECT_FALSE(BatondIsOfItsFile());
  EXPECT_EQ(cluster_->batond().pid(), batond);
  ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
}

// A service manager that starts batond again starts the file of the new program.
TEST_F(BatonUpgradeTest, shouldGoBackToTheBatondBeforeWhenTheNextDies) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(InstallOtherRelease("batond"));
  const pid_t batond = cluster_->batond().pid();
  ASSERT_OK(cluster_->operators().ReplaceProgram(v1::ReplaceProgramRequest::BATOND));
  ASSERT_OK(harness::WaitUntil("the new program", [&] {
    const std::string variables = harness::ReadFile(absl::StrCat("/proc/", batond, "/environ"));
    return variables.find("BATON_ON_TRIAL=") != std::string::npos;
  }));
  ASSERT_OK(cluster_->batond().Kill());
  ASSERT_OK(cluster_->StartBatondAgain());
  // Control, which has outlived both, learns it from the batond that has taken it in.
  ASSERT_OK(harness::WaitUntil("the reason", [&] {
    return absl::StrContains(Status().batond_program_given_up(), "died before");
  }));
  EXPECT_FALSE(BatondIsOfItsFile());
  ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
  // A later one is tried.
  const harness::CommandResult upgrade = Upgrade();
  EXPECT_EQ(upgrade.status, 0) << upgrade.out << upgrade.err;
  EXPECT_TRUE(BatondIsOfItsFile());
  EXPECT_THAT(Status().batond_program_given_up(), IsEmpty());
}

// The window is longer than what each new program has to prove in any case.
TEST_F(BatonUpgradeTest, shouldGoBackAsLongAsTheWatchWindowLasts) {
  constexpr uint32_t kWindow = 600'000;
  ASSERT_NO_FATAL_FAILURE(Start());
  for (const auto& [name, program] : own_) ASSERT_NO_FATAL_FAILURE(InstallOtherRelease(name));
  harness::OperatorClient& operators = cluster_->operators();
  ASSERT_OK(operators.ReplaceProgram(v1::ReplaceProgramRequest::BATOND, kWindow));
  ASSERT_OK(harness::WaitUntil("the new batond", [&] { return BatondIsOfItsFile(); }));
  ASSERT_OK(harness::WaitUntil("a batond that can be asked", [&] {
    return operators.ReplaceProgram(v1::ReplaceProgramRequest::CONTROL, kWindow).ok();
  }));
  ASSERT_OK(harness::WaitUntil("the new control",
                               [&] { return Status().version().release() == kOther; }));
  ASSERT_OK(operators.ReplaceKeeper("ledger", kWindow));
  ASSERT_OK(harness::WaitUntil("the new keeper",
                               [&] { return Status().services(0).keeper_release() == kOther; }));
  const auto proven = std::chrono::steady_clock::now() + std::chrono::seconds(6);
  ASSERT_OK(harness::WaitUntil("what proves a program that nobody watches",
                               [&] { return std::chrono::steady_clock::now() >= proven; }));
  ASSERT_EQ(kill(Status().services(0).keeper_pid(), SIGSEGV), 0);
  ASSERT_EQ(kill(Status().control_pid(), SIGSEGV), 0);
  ASSERT_OK(harness::WaitUntil("the control and the keeper before", [&] {
    const v1::GetStatusResponse status = Status();
    return !status.control_program_given_up().empty() && status.services_size() > 0 &&
           !status.services(0).keeper_program_given_up().empty();
  }));
  EXPECT_EQ(Status().version().release(), kRelease);
  EXPECT_EQ(Status().services(0).keeper_release(), kRelease);
  ASSERT_OK(cluster_->batond().Kill());
  ASSERT_OK(cluster_->StartBatondAgain());
  ASSERT_OK(harness::WaitUntil("the batond before", [&] {
    return absl::StrContains(Status().batond_program_given_up(), "died before");
  }));
  EXPECT_FALSE(BatondIsOfItsFile());
  ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
}

TEST_F(BatonUpgradeTest, shouldBeginWithTheCanaryAndStopThereIfItDoesNotServe) {
  ASSERT_NO_FATAL_FAILURE(Start({"--service", "second"}));
  harness::CommandResult upgrade = Upgrade({"--canary", "third"});
  EXPECT_EQ(upgrade.status, 4);
  EXPECT_THAT(upgrade.err, HasSubstr("there is no service third"));
  upgrade = Upgrade({"--canary", "second"});
  EXPECT_EQ(upgrade.status, 0) << upgrade.err;
  EXPECT_LT(upgrade.out.find("service second: keeper"), upgrade.out.find("service ledger: keeper"));
  Install("baton-keeper", kFails);
  const pid_t keeper = Status().services(0).keeper_pid();
  upgrade = Upgrade({"--canary", "50%"});
  EXPECT_EQ(upgrade.status, 1);
  EXPECT_THAT(upgrade.err, HasSubstr("1 more services were left alone"));
  EXPECT_THAT(upgrade.out, Not(HasSubstr("control replaced")));
  EXPECT_EQ(Status().services(0).keeper_pid(), keeper);
  ASSERT_NO_FATAL_FAILURE(ExpectServedAsBefore());
}

}  // namespace
}  // namespace baton
