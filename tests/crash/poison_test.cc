// A message of which every worker dies, or hangs: after three deaths its connection alone is
// failed, sixteen checked ones lose nothing, and the service goes on.
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "tests/crash/crash_fixture.h"
#include "tests/harness/poison_peer.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

using harness::kPoisonAmount;
using harness::PoisonPeer;

constexpr uint64_t kDeaths = 3;  // the default of poison_deaths

class PoisonTest : public CrashTest {
 protected:
  // A service with so many workers (AddWorkers), the checked peer with its rate (0: there is none),
  // and the one that sends the poison.
  void Start(size_t workers, uint64_t rate, std::vector<std::string> batond_arguments = {},
             const std::string& option = "--crash-on-amount") {
    harness::ClusterOptions options;
    options.batond_arguments = std::move(batond_arguments);
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
    ASSERT_NO_FATAL_FAILURE(AddWorkers(workers, option));
    if (rate != 0) {
      ASSERT_NO_FATAL_FAILURE(StartPeer(rate));
    }
    poisoner_.emplace(kClient);
    ASSERT_OK(poisoner_->Connect(cluster_->port()));
  }
  // So many workers that die of the poison, or suffer from it as `option` says. The first owns all.
  void AddWorkers(size_t count, const std::string& option = "--crash-on-amount") {
    for (size_t i = 0; i < count; ++i) {
      harness::LedgerOptions options;
      options.version = 1 + static_cast<int>(workers_.size() % 2);
      options.program = absl::StrCat("ledger-v", options.version, "-test-hooks");
      options.arguments = {option, absl::StrCat(kPoisonAmount)};
      options.await_control = false;  // which may be stopped
      ASSERT_NO_FATAL_FAILURE(StartWorker(options, &workers_.emplace_back()));
    }
  }
  size_t Dead() {
    return static_cast<size_t>(
        std::count_if(workers_.begin(), workers_.end(),
                      [](const auto& worker) { return worker->process->HasEnded(); }));
  }
  // Returns how many connections are poisoned. It asks the keeper, which needs no control for it.
  uint64_t Poisoned() {
    const auto description = cluster_->keeper().Describe();
    uint64_t poisoned = 0;
    if (!description.ok()) return poisoned;
    for (const v1::Shard& shard : description->shards()) poisoned += shard.poisoned_connections();
    return poisoned;
  }
  // Returns what was told of so many failed connections.
  std::vector<std::string> Told(size_t connections) {
    std::vector<std::string> told;
    EXPECT_OK(harness::WaitUntil("the events", [&] {
      const auto events = cluster_->keeper().NewEvents();
      if (!events.ok()) return false;
      for (const v1::Event& event : *events) {
        if (event.kind() == "connection_poisoned") told.push_back(event.message());
      }
      return told.size() >= connections;
    }));
    return told;
  }
  // So many connections were failed, at the cost of so many workers and no more; everybody else is
  // served by those that are left.
  void ExpectPoisoned(uint64_t connections, size_t deaths) {
    EXPECT_EQ(Poisoned(), connections);
    EXPECT_OK(harness::WaitUntil("the dead", [&] { return Dead() >= deaths; }));
    ASSERT_OK(peer_->Settle());
    EXPECT_EQ(Dead(), deaths);
    for (const auto& worker : workers_) {
      if (!worker->process->HasEnded()) continue;
      const auto status = worker->process->WaitEnd(std::chrono::seconds(1));
      EXPECT_TRUE(status.ok() && WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL);
    }
    const std::vector<std::string> told = Told(connections);
    EXPECT_EQ(told.size(), connections);
    for (const std::string& message : told) {
      EXPECT_NE(message.find("3 workers ("), std::string::npos) << message;
      EXPECT_NE(message.find("died on its receive"), std::string::npos) << message;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectNothingLost());
    ExpectNewcomerServed();
  }
  void ExpectNewcomerServed() {
    PoisonPeer newcomer(kClient + 100);
    ASSERT_OK(newcomer.Connect(cluster_->port()));
    ASSERT_OK(newcomer.Send({5, 6, 7}));
    EXPECT_OK(newcomer.WaitReplies(3));
  }

  static constexpr uint64_t kClient = uint64_t{1} << 62;

  std::deque<std::unique_ptr<harness::LedgerWorker>> workers_;
  std::optional<PoisonPeer> poisoner_;
};

TEST_F(PoisonTest, shouldFailTheConnectionOfAMessageOnWhichThreeOwnersDied) {
  ASSERT_NO_FATAL_FAILURE(Start(kDeaths + 1, 4000));
  ASSERT_OK(poisoner_->Send({1, 2}));
  ASSERT_OK(poisoner_->WaitReplies(2));
  ASSERT_OK(poisoner_->Send({kPoisonAmount}));
  ASSERT_OK(poisoner_->WaitDisconnected());
  ASSERT_NO_FATAL_FAILURE(ExpectPoisoned(1, kDeaths));
}

TEST_F(PoisonTest, shouldFindAMessageInTheMiddleOfABatch) {
  ASSERT_NO_FATAL_FAILURE(Start(kDeaths + 1, 4000));
  // Nobody serves while they arrive, so that the next owner has all of them before it.
  ASSERT_OK(workers_[0]->process->Signal(SIGSTOP));
  ASSERT_OK(poisoner_->Send({1, 2, 3, kPoisonAmount, 5, kPoisonAmount, 7}));
  ASSERT_OK(workers_[0]->process->Signal(SIGCONT));
  ASSERT_OK(poisoner_->WaitDisconnected());
  ASSERT_NO_FATAL_FAILURE(ExpectPoisoned(1, kDeaths));
}

TEST_F(PoisonTest, shouldFailTheConnectionOfAMessageOnWhichThreeOwnersHung) {
  ASSERT_NO_FATAL_FAILURE(Start(kDeaths + 1, 2000,
                                {"--heartbeat-ms", "50", "--hang-timeout-ms", "2000"},
                                "--hang-on-amount"));
  ASSERT_OK(poisoner_->Send({1, kPoisonAmount, 3}));
  ASSERT_OK(poisoner_->WaitDisconnected());
  ASSERT_NO_FATAL_FAILURE(ExpectPoisoned(1, kDeaths));
}

TEST_F(PoisonTest, shouldFailTwoConnectionsThatArePoisonedAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Start(2 * kDeaths + 1, 4000));
  PoisonPeer other(kClient + 1);
  ASSERT_OK(other.Connect(cluster_->port()));
  const auto poisoners = {&*poisoner_, &other};
  ASSERT_OK(workers_[0]->process->Signal(SIGSTOP));
  for (PoisonPeer* poisoner : poisoners) ASSERT_OK(poisoner->Send({1, kPoisonAmount, 3}));
  ASSERT_OK(workers_[0]->process->Signal(SIGCONT));
  for (PoisonPeer* poisoner : poisoners) ASSERT_OK(poisoner->WaitDisconnected());
  ASSERT_NO_FATAL_FAILURE(ExpectPoisoned(2, 2 * kDeaths));
}

// A service manager may start the only worker again each time that it dies.
TEST_F(PoisonTest, shouldCountDeathsOfWorkersThatAreStartedAgain) {
  ASSERT_NO_FATAL_FAILURE(Start(1, 4000));
  ASSERT_OK(poisoner_->Send({1, kPoisonAmount, 3}));
  for (size_t deaths = 1; deaths <= kDeaths; ++deaths) {
    if (deaths < kDeaths) {
      EXPECT_EQ(Poisoned(), 0u);
    }
    ASSERT_OK(harness::WaitUntil("the next to die", [&] { return Dead() == deaths; }));
    ASSERT_NO_FATAL_FAILURE(AddWorkers(1));
  }
  ASSERT_OK(poisoner_->WaitDisconnected());
  ASSERT_NO_FATAL_FAILURE(ExpectPoisoned(1, kDeaths));
}

TEST_F(PoisonTest, shouldNeedNoControl) {
  ASSERT_NO_FATAL_FAILURE(Start(kDeaths + 1, 4000));
  const auto status = cluster_->operators().GetStatus();
  ASSERT_OK(status);
  const FileDescriptor control(static_cast<int>(syscall(SYS_pidfd_open, status->control_pid(), 0)));
  ASSERT_TRUE(control);
  ASSERT_EQ(syscall(SYS_pidfd_send_signal, control.get(), SIGSTOP, nullptr, 0), 0);
  EXPECT_OK(poisoner_->Send({1, kPoisonAmount, 3}));
  EXPECT_OK(poisoner_->WaitDisconnected());
  EXPECT_EQ(Poisoned(), 1u);
  EXPECT_OK(peer_->Settle());
  // It comes back as what it was, or batond has started another.
  (void)syscall(SYS_pidfd_send_signal, control.get(), SIGKILL, nullptr, 0);
  ASSERT_NO_FATAL_FAILURE(ExpectPoisoned(1, kDeaths));
}

// An operator who kills hung workers by hand has found the cause, or looks for it.
TEST_F(PoisonTest, shouldNotCountWorkersThatAnOperatorKilled) {
  ASSERT_NO_FATAL_FAILURE(
      Start(1, 0, {"--heartbeat-ms", "20", "--hang-timeout-ms", "600000"}, "--hang-on-amount"));
  ASSERT_OK(poisoner_->Send({1, kPoisonAmount, 3}));
  for (size_t deaths = 1; deaths <= kDeaths + 1; ++deaths) {
    // So many beats are missing: it is in the handler.
    ASSERT_OK(harness::WaitUntil("the owner to hang", [&] {
      const auto description = cluster_->keeper().Describe();
      return description.ok() && description->workers_size() > 0 &&
             description->workers(0).seconds_since_heartbeat() > 0.5;
    }));
    ASSERT_OK(cluster_->operators().KillWorker("ledger", workers_.back()->id));
    ASSERT_OK(harness::WaitUntil("its death", [&] { return Dead() == deaths; }));
    if (deaths <= kDeaths) {
      ASSERT_NO_FATAL_FAILURE(AddWorkers(1, "--hang-on-amount"));
    }
  }
  EXPECT_EQ(Poisoned(), 0u);
  // One that can take it does.
  std::unique_ptr<harness::LedgerWorker> sound;
  ASSERT_NO_FATAL_FAILURE(StartWorker(2, &sound));
  EXPECT_OK(poisoner_->WaitReplies(3));
  EXPECT_FALSE(poisoner_->disconnected());
}

TEST_F(PoisonTest, shouldGoByTheServicesLimit) {
  ASSERT_NO_FATAL_FAILURE(Start(2, 0, {"--poison-deaths", "1"}));
  ASSERT_OK(poisoner_->Send({kPoisonAmount}));
  ASSERT_OK(poisoner_->WaitDisconnected());
  ASSERT_OK(harness::WaitUntil("the first to die", [&] { return Dead() == 1; }));
  ASSERT_NO_FATAL_FAILURE(ExpectNewcomerServed());
  EXPECT_EQ(Dead(), 1u);
}

// What the limit is for: without it such a message is the end of every worker.
TEST_F(PoisonTest, shouldFailNobodyWhenItIsSwitchedOff) {
  ASSERT_NO_FATAL_FAILURE(Start(2 * kDeaths + 1, 0, {"--poison-deaths", "4294967295"}));
  ASSERT_OK(poisoner_->Send({kPoisonAmount}));
  ASSERT_OK(harness::WaitUntil("all to die", [&] { return Dead() == workers_.size(); }));
  EXPECT_EQ(Poisoned(), 0u);
  EXPECT_FALSE(poisoner_->disconnected());
}

// They do not tell what they died on. Nobody else has anything open, so it can only be this one.
TEST_F(PoisonTest, shouldServeAgainAfterWorkersOfTheLayoutBeforeDied) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_EQ(setenv("BATON_PREVIOUS_LAYOUT", "1", 1), 0);
  ASSERT_NO_FATAL_FAILURE(AddWorkers(kDeaths + 1));
  unsetenv("BATON_PREVIOUS_LAYOUT");
  poisoner_.emplace(kClient);
  ASSERT_OK(poisoner_->Connect(cluster_->port()));
  ASSERT_OK(poisoner_->Send({1, 2}));
  ASSERT_OK(poisoner_->WaitReplies(2));
  ASSERT_OK(poisoner_->Send({kPoisonAmount}));
  ASSERT_OK(poisoner_->WaitDisconnected());
  ASSERT_OK(harness::WaitUntil("the dead", [&] { return Dead() == kDeaths; }));
  const std::vector<std::string> told = Told(1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("they did not tell"), std::string::npos) << told[0];
  ASSERT_NO_FATAL_FAILURE(ExpectNewcomerServed());
}

}  // namespace
}  // namespace baton::crash
