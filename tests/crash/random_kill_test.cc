// Ends owners at random moments under load: killed, hung, and hung for about as long as the keeper
// waits; with no, one and two standbys; with control alive, stopped and dead, and without batond.
// Brokers, keepers and batonds die with them. The driver is the same all the time.
// BATON_KILLS: how many owners have to end (32; 8 where that takes long); BATON_SEED: of all that
// is random (printed); BATON_RATE: of the peer, in messages per second (6000).
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/crash/crash_fixture.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

// A healthy worker on a machine with too much to do may be taken for a hung one at these; nothing
// may be lost then either, and it is counted.
const uint64_t kHeartbeatMs = 10 * harness::Slowness();
const uint64_t kHangTimeoutMs = 100 * harness::Slowness();
const uint64_t kLatestKillUs = 8'000 * harness::Slowness();  // after a round has begun

const uint64_t kKills = harness::Slowness() > 1 ? 8 : 32;

// How an owner ends: it is killed; it is stopped, and the keeper kills it; it is stopped and
// continued when it may have been taken for hung, or not yet.
enum class Ending { kKilled, kHung, kHungForAWhile };
constexpr const char* kEndings[] = {"killed", "hung", "hung for a while"};

// What control was at that moment.
enum class Control { kAlive, kStopped, kDead, kWithoutBatond };
constexpr const char* kControls[] = {"alive", "stopped", "dead", "without batond"};

class RandomKillTest : public CrashTest {
 protected:
  using Worker = std::unique_ptr<harness::LedgerWorker>;
  using Kind = std::tuple<Ending, size_t, Control>;  // with how many standbys

  void StartHastyCluster(harness::ClusterOptions options = harness::ClusterOptions()) {
    options.batond_arguments.insert(options.batond_arguments.end(),
                                    {"--heartbeat-ms", absl::StrCat(kHeartbeatMs),
                                     "--hang-timeout-ms", absl::StrCat(kHangTimeoutMs)});
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
  }

  // Until `kills` owners have ended.
  void EndOwners(uint64_t kills, uint64_t seed) {
    std::printf("%llu kills, BATON_SEED=%llu\n", Printable(kills), Printable(seed));
    random_.seed(seed);
    ASSERT_NO_FATAL_FAILURE(AddWorker());
    ASSERT_NO_FATAL_FAILURE(StartPeer(harness::Setting("BATON_RATE", 6000)));
    for (uint64_t round = 0; ended_ < kills; ++round) {
      SCOPED_TRACE(absl::StrCat("round ", round));
      ASSERT_NO_FATAL_FAILURE(Round());
      if (peer_->process().HasEnded()) break;  // it has found something wrong, and says what
      if (round % 500 != 499) continue;
      std::printf("%llu owners have ended\n", Printable(ended_));
      std::fflush(stdout);
    }
    PrintCounts();
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }

  void Round() {
    ASSERT_NO_FATAL_FAILURE(RemoveStarved());
    const uint64_t draw = Draw(10);
    ASSERT_NO_FATAL_FAILURE(KeepStandbys(draw < 2 ? 0 : draw < 7 ? 1 : 2));
    const uint64_t how = Draw(10);
    const Ending ending = how < 5   ? Ending::kKilled
                          : how < 8 ? Ending::kHung
                                    : Ending::kHungForAWhile;
    Worker victim;
    ASSERT_NO_FATAL_FAILURE(TakeOwner(&victim));
    PassTime(Draw(kLatestKillUs));
    const Control control = TroubleControl();
    ASSERT_NO_FATAL_FAILURE(TroubleKeeper());
    if (Draw(2) == 0) {
      ASSERT_NO_FATAL_FAILURE(TroubleBrokers());
      PassTime(Draw(1000));
    }
    ++counts_[{ending, workers_.size(), control}];
    const bool heir_dies_too = !workers_.empty() && Draw(10) == 0;
    ASSERT_OK(victim->process->Signal(ending == Ending::kKilled ? SIGKILL : SIGSTOP));
    if (heir_dies_too) {
      ++heirs_killed_;
      ASSERT_OK(workers_.back()->process->Kill());
      workers_.pop_back();
    }
    const bool control_comes_back_first = Draw(2) == 0;
    if (control_comes_back_first) {
      ASSERT_NO_FATAL_FAILURE(BringControlBack());
    }
    ASSERT_NO_FATAL_FAILURE(AwaitEnd(ending, &victim));
    if (workers_.empty()) {
      ASSERT_NO_FATAL_FAILURE(AddWorker());
    }
    ASSERT_NO_FATAL_FAILURE(AwaitOwners());
    ASSERT_NO_FATAL_FAILURE(BringControlBack());
  }

  // ---------------------------------------------------------------- workers

  // One that gets no processor as soon as it owns something is killed before it has said a word.
  void AddWorker() {
    harness::LedgerOptions options;
    options.version = 1 + static_cast<int>(started_++ % 2);
    options.await_control = false;
    // A stopped broker frees a slot only after it was killed.
    const auto deadline =
        std::chrono::steady_clock::now() + harness::Patient(std::chrono::seconds(30));
    while (std::chrono::steady_clock::now() < deadline) {
      NoteSilent();
      const size_t silent = silent_.size();
      auto worker = cluster_->StartLedger(options);
      if (worker.ok()) {
        workers_.push_back(*std::move(worker));
        return;
      }
      NoteSilent();
      // Both brokers were killed, and the next one has not freed the slot yet.
      if (absl::StrContains(worker.status().message(), "the broker has not done")) continue;
      ASSERT_GT(silent_.size(), silent) << worker.status();
      ++starved_;
    }
    FAIL() << "no broker frees a slot";
  }

  // So many besides one owner.
  void KeepStandbys(size_t wanted) {
    while (workers_.size() < 1 + wanted) ASSERT_NO_FATAL_FAILURE(AddWorker());
    while (workers_.size() > 1 + wanted) {
      Worker surplus;
      ASSERT_NO_FATAL_FAILURE(Take(/*owner=*/false, &surplus));
      if (!surplus) return;  // all of them own shards
      ASSERT_OK(surplus->process->Kill());
    }
  }

  // Out of workers_ one at random that owns shards, or one that owns none, if there is one.
  void Take(bool owner, Worker* taken) {
    const auto description = cluster_->keeper().Describe();
    ASSERT_OK(description);
    std::vector<size_t> candidates;
    for (size_t i = 0; i < workers_.size(); ++i) {
      const bool owns = std::any_of(
          description->shards().begin(), description->shards().end(),
          [&](const v1::Shard& shard) { return shard.owner_worker_id() == workers_[i]->id; });
      if (owns == owner) candidates.push_back(i);
    }
    if (candidates.empty()) return;
    const size_t index = candidates[Draw(candidates.size())];
    *taken = std::move(workers_[index]);
    workers_.erase(workers_.begin() + static_cast<ptrdiff_t>(index));
  }

  void TakeOwner(Worker* taken) {
    while (!*taken) {
      ASSERT_NO_FATAL_FAILURE(Take(/*owner=*/true, taken));
      if (*taken) return;
      ASSERT_NO_FATAL_FAILURE(AwaitOwners());
    }
  }

  // Removes the workers that ended unasked. Expects that each was killed because it showed no sign
  // of life.
  void RemoveStarved() {
    for (size_t i = 0; i < workers_.size();) {
      if (!workers_[i]->process->HasEnded()) {
        ++i;
        continue;
      }
      EXPECT_TRUE(WasSilent(workers_[i]->id)) << "worker " << workers_[i]->id << " ended:\n"
                                              << workers_[i]->process->LogTail();
      ++starved_;
      workers_.erase(workers_.begin() + static_cast<ptrdiff_t>(i));
    }
    if (workers_.empty()) {
      ASSERT_NO_FATAL_FAILURE(AddWorker());
    }
  }

  bool WasSilent(uint64_t id) {
    NoteSilent();
    return silent_.contains(id);
  }

  void NoteSilent() {
    const auto events = cluster_->keeper().NewEvents();
    ASSERT_OK(events);
    for (const v1::Event& event : *events) {
      const bool silent = event.message().find("no sign of life") != std::string::npos;
      if (event.kind() == "worker_killed" && silent) silent_.insert(event.worker_id());
    }
  }

  // Waits until `victim` has ended or, if it was continued in time, until it is seen to live again.
  void AwaitEnd(Ending ending, Worker* victim) {
    harness::ChildProcess& process = *(*victim)->process;
    if (ending == Ending::kHungForAWhile) {
      PassTime(Draw(2 * kHangTimeoutMs * 1000));
      ASSERT_OK(process.Signal(SIGCONT));
      bool lives = false;
      beats_.clear();
      ASSERT_OK(harness::WaitUntil("the continued worker to end or to beat", [&] {
        lives = BeatsAgain((*victim)->id);
        return lives || process.HasEnded();
      }));
      if (lives) {
        ++went_on_;
        workers_.push_back(std::move(*victim));
        return;
      }
    }
    const auto status = process.WaitEnd(std::chrono::seconds(20));
    ASSERT_OK(status);
    ASSERT_TRUE(WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL) << *status;
    ++ended_;
  }

  bool BeatsAgain(uint64_t id) {
    const auto description = cluster_->keeper().Describe();
    if (!description.ok()) return false;
    const auto worker =
        std::find_if(description->workers().begin(), description->workers().end(),
                     [&](const v1::Worker& candidate) { return candidate.id() == id; });
    if (worker == description->workers().end()) return false;
    // The first look, after SIGCONT, gives the number of beats that it has to exceed.
    const auto [first, inserted] = beats_.try_emplace(id, worker->heartbeats());
    if (inserted || worker->heartbeats() == first->second) return false;
    return worker->state() == v1::WORKER_STATE_READY;
  }

  // Until every shard is owned by one of workers_.
  void AwaitOwners() {
    ASSERT_OK(harness::WaitUntil("every shard to be owned by a worker that lives", [&] {
      if (std::any_of(workers_.begin(), workers_.end(),
                      [](const Worker& worker) { return worker->process->HasEnded(); })) {
        if (RemoveStarved(); HasFatalFailure()) return true;
      }
      const auto description = cluster_->keeper().Describe();
      return description.ok() &&
             std::all_of(description->shards().begin(), description->shards().end(),
                         [&](const v1::Shard& shard) {
                           return std::any_of(workers_.begin(), workers_.end(),
                                              [&](const Worker& worker) {
                                                return worker->id == shard.owner_worker_id();
                                              });
                         });
    }));
  }

  // ---------------------------------------------------------------- control

  // batond waits longer and longer before it starts a control again that was killed young, so that
  // control is dead for a good part of the rounds although few kill it.
  Control TroubleControl() {
    const pid_t control = cluster_->ControlPid();
    if (control == 0) return Control::kDead;
    const uint64_t draw = Draw(30);
    if (draw < 3) {
      EXPECT_TRUE(cluster_->KillBatond().ok());
      batond_is_dead_ = true;
      ++batonds_killed_;
      return Control::kWithoutBatond;
    }
    if (draw == 3) {
      kill(control, SIGKILL);
      ++controls_killed_;
      return Control::kDead;
    }
    if (draw < 17) return Control::kAlive;
    kill(control, SIGSTOP);
    stopped_control_ = control;
    return Control::kStopped;
  }

  // The driver starts another one.
  void TroubleKeeper() {
    if (Draw(4) != 0) return;
    const auto description = cluster_->keeper().Describe();
    ASSERT_OK(description);
    NoteSilent();  // the next keeper does not tell of it
    kill(description->service().keeper_pid(), SIGKILL);
    ++keepers_killed_;
  }

  // One that drives the queues is killed or stopped, a waiting one is killed, or both are.
  void TroubleBrokers() {
    const auto description = cluster_->keeper().Describe();
    ASSERT_OK(description);
    const pid_t broker = description->service().broker_pid();
    const pid_t twin = description->service().twin_pid();
    const uint64_t draw = Draw(20);
    if (broker != 0 && draw < 16) {
      kill(broker, draw == 0 ? SIGSTOP : SIGKILL);
      ++brokers_ended_;
    }
    if (twin != 0 && draw >= 13) {
      kill(twin, SIGKILL);
      ++twins_killed_;
    }
    // Where nobody follows it, everything would end.
    const bool is_followed = description->service().driver_twin_pid() != 0;
    if (is_followed && Draw(8) == 0) {
      kill(description->service().driver_pid(), SIGKILL);
      ++drivers_killed_;
    }
  }

  void BringControlBack() {
    // Nobody else kills it, so it is the same process.
    if (stopped_control_ != 0) kill(stopped_control_, SIGCONT);
    stopped_control_ = 0;
    if (!std::exchange(batond_is_dead_, false)) return;
    ASSERT_OK(cluster_->StartBatondAgain());
    const auto status = cluster_->operators().GetStatus();
    ASSERT_OK(status);
    if (driver_ == 0) driver_ = status->services(0).driver_pid();
    if (drivers_killed_ == 0) ASSERT_EQ(status->services(0).driver_pid(), driver_);
  }

  void PrintCounts() const {
    for (const auto& [kind, count] : counts_) {
      const auto [ending, standbys, control] = kind;
      std::printf("%6llu  owner %s, %zu standbys, control %s\n", Printable(count),
                  kEndings[static_cast<int>(ending)], standbys,
                  kControls[static_cast<int>(control)]);
    }
    std::printf(
        "%llu owners ended, %llu went on in time; besides, %llu standbys were killed with the "
        "owner, %llu brokers and %llu twins, %llu drivers, %llu keepers, %llu controls, %llu "
        "batonds, and %llu healthy workers that got no processor\n",
        Printable(ended_), Printable(went_on_), Printable(heirs_killed_), Printable(brokers_ended_),
        Printable(twins_killed_), Printable(drivers_killed_), Printable(keepers_killed_),
        Printable(controls_killed_), Printable(batonds_killed_), Printable(starved_));
  }

  std::mt19937_64 random_;
  std::vector<Worker> workers_;
  std::map<uint64_t, uint64_t> beats_;  // at the first look, by worker
  std::set<uint64_t> silent_;           // killed by the keeper because they showed no sign of life
  pid_t stopped_control_ = 0;
  bool batond_is_dead_ = false;
  pid_t driver_ = 0;  // after the first restart of batond
  std::map<Kind, uint64_t> counts_;
  uint64_t started_ = 0, ended_ = 0, went_on_ = 0, starved_ = 0;
  uint64_t brokers_ended_ = 0, twins_killed_ = 0, drivers_killed_ = 0;
  uint64_t heirs_killed_ = 0, keepers_killed_ = 0, controls_killed_ = 0, batonds_killed_ = 0;
};

TEST_F(RandomKillTest, shouldLoseAndRepeatNothing) {
  ASSERT_NO_FATAL_FAILURE(StartHastyCluster());
  ASSERT_NO_FATAL_FAILURE(EndOwners(harness::Setting("BATON_KILLS", kKills),
                                    harness::Setting("BATON_SEED", std::random_device()())));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// Receives that nobody's connection owns: a window of half of what the peers have open.
TEST_F(RandomKillTest, shouldLoseAndRepeatNothingWhereReceivesAreShared) {
  harness::ClusterOptions options;
  options.batond_arguments = {"--shared-receive-queue-depth", "16"};
  ASSERT_NO_FATAL_FAILURE(StartHastyCluster(options));
  ASSERT_NO_FATAL_FAILURE(EndOwners(harness::Setting("BATON_KILLS", kKills) / 2,
                                    harness::Setting("BATON_SEED", std::random_device()())));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// Completions come late and out of step with commits: other windows are hit.
TEST_F(RandomKillTest, shouldLoseAndRepeatNothingOverALinkThatDelaysAndRefuses) {
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device()());
  harness::ClusterOptions options;
  options.batond_arguments = {"--faults",
                              "seed: " + std::to_string(seed) +
                                  " rules { kind: DELAY probability: 0.02 duration_us: 300 }"
                                  " rules { kind: STALL probability: 0.002 duration_us: 2000 }"
                                  " rules { kind: RNR probability: 0.01 duration_us: 500 }"};
  ASSERT_NO_FATAL_FAILURE(StartHastyCluster(options));
  ASSERT_NO_FATAL_FAILURE(EndOwners(harness::Setting("BATON_KILLS", kKills) / 8, seed));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// The checker is worth something: with a recovery that forgets what was not acknowledged it fails.
TEST_F(RandomKillTest, shouldBeCaughtByTheCheckerWhenRecoveryIsBroken) {
  ASSERT_EQ(setenv("BATON_BREAK_RECOVERY", "1", 1), 0);
  harness::ClusterOptions options;
  options.driver = "baton-driver-test-hooks";
  ASSERT_NO_FATAL_FAILURE(StartHastyCluster(options));
  unsetenv("BATON_BREAK_RECOVERY");
  ASSERT_NO_FATAL_FAILURE(EndOwners(20, 1));
  const auto result = peer_->Stop();
  ASSERT_OK(result);
  EXPECT_FALSE(result->Flag("ok")) << result->text();
  EXPECT_GT(result->Count("lost") + result->Count("wrong_total") + result->Count("disconnects"), 0u)
      << result->text();
}

}  // namespace
}  // namespace baton::crash
