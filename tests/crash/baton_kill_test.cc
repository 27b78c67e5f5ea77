// Ends what a service is made of at random moments under load, singly and in pairs: control, the
// keeper, batond, an owner, the driver where it has a twin or this twin, the broker, and its twin;
// killed, or stopped for a while. Meanwhile peers come, are served and go. Nothing is lost, and no
// peer is refused or disconnected. BATON_KILLS: how many processes have to end or hang (24);
// BATON_SEED: of all that is random (printed); BATON_RATE: of the peer that stays, in messages per
// second (4000).
//
// Nothing here fails because of a time. A bar judges the lines that begin with "arrivals"
// (judge_arrivals in tests/bars/bars.sh).
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/crash/crash_fixture.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/binaries.h"
#include "tests/harness/quantile.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

using Clock = std::chrono::steady_clock;

const uint64_t kHangTimeoutMs = 300 * harness::Slowness();
const std::chrono::seconds kKeeperHangTimeout(2 * harness::Slowness());
// The driver looks once a second whether brokers have done what they were told a second before.
constexpr std::chrono::seconds kBrokerHangTimeout(2);
const uint64_t kLatestKillUs = 8'000 * harness::Slowness();  // after a round has begun
const uint64_t kKills = harness::Slowness() > 1 ? 4 : 24;
// Kept running natively. With few, each lives too shortly, and the next are forked later and later.
constexpr size_t kNativeWorkers = 8;
constexpr size_t kBrokeredWorkers = 3;
// The queue pairs of native visitors that have gone wait before they may be used again.
constexpr uint32_t kVisitors = 112;

// How long peers took from the start of their process until they were connected, and how much of
// that is more than the hang timeouts of what hung.
class Arrivals {
 public:
  // `hurt`: what was killed or stopped before.
  void Add(Clock::duration taken, Clock::duration hang_timeouts, const std::string& hurt) {
    const double milliseconds =
        std::max(0.0, std::chrono::duration<double, std::milli>(taken - hang_timeouts).count());
    milliseconds_.push_back(milliseconds);
    if (milliseconds <= longest_) return;
    longest_ = milliseconds;
    before_longest_ = hurt;
  }
  // For people, and in a line for programs: of which `workers`, `when`, and figures by their names.
  void Print(const char* workers, const char* when, const char* in_words) {
    if (milliseconds_.empty()) return;
    const double p50 = *Quantile(milliseconds_, 0.5), p99 = *Quantile(milliseconds_, 0.99);
    std::printf("%6zu peers connected %s: p50 %.1f ms, p99 %.1f ms, longest %.1f ms%s\n",
                milliseconds_.size(), in_words, p50, p99, longest_, before_longest_.c_str());
    std::printf("arrivals %s %s count=%zu p50_ms=%.3f p99_ms=%.3f longest_ms=%.3f\n", workers, when,
                milliseconds_.size(), p50, p99, longest_);
  }

 private:
  std::vector<double> milliseconds_;
  double longest_ = 0;
  std::string before_longest_;  // what was hurt before it
};

// Native services have no brokers.
enum Victim {
  kControl,
  kKeeper,
  kBatond,
  kOwner,
  kDriver,
  kDriverTwin,
  kBroker,
  kBrokerTwin,
  kVictims
};
constexpr std::array<const char*, kVictims> kNames = {
    "controls", "keepers",          "batonds", "owners",
    "drivers",  "twins of drivers", "brokers", "twins of brokers"};

class BatonKillTest : public CrashTest, public testing::WithParamInterface<bool> {
 protected:
  static bool IsNative() { return GetParam(); }

  void Start() {
    harness::ClusterOptions options;
    // The second is a keeper's, and as short as it can be.
    options.batond_arguments = {"--hang-timeout-ms", absl::StrCat(kHangTimeoutMs),
                                "--heartbeat-ms",    absl::StrCat(kHangTimeoutMs / 3),
                                "--hang-timeout",    absl::StrCat(kKeeperHangTimeout.count())};
    if (IsNative()) {
      options.native_object = harness::Binaries().Find("ledger-v1.so").value();
      options.batond_arguments.insert(options.batond_arguments.end(),
                                      {"--native-workers", absl::StrCat(kNativeWorkers)});
    }
    ASSERT_NO_FATAL_FAILURE(StartCluster(options, kVisitors));
    if (IsNative()) ASSERT_OK(cluster_->WaitUntilListening());
    ASSERT_NO_FATAL_FAILURE(AddWorkers());
    ASSERT_NO_FATAL_FAILURE(AwaitService());
    ASSERT_NO_FATAL_FAILURE(FollowHungKeepers());
    driver_ = DriverPid();
    batond_started_ = Clock::now();  // and the policy was set
    ASSERT_NO_FATAL_FAILURE(StartPeer(harness::Setting("BATON_RATE", 4000)));
  }

  void End(uint64_t kills, uint64_t seed) {
    std::printf("%llu kills, BATON_SEED=%llu\n", Printable(kills), Printable(seed));
    random_.seed(seed);
    for (uint64_t round = 0; ended_ < kills && !peer_->process().HasEnded(); ++round) {
      SCOPED_TRACE(absl::StrCat("round ", round));
      ASSERT_NO_FATAL_FAILURE(Round()) << hurt_;
    }
    for (size_t victim = 0; victim < kVictims; ++victim) {
      std::printf("%6llu %s killed, %llu stopped for a while\n", killed_[victim], kNames[victim],
                  stopped_[victim]);
    }
    const char* const workers = IsNative() ? "native" : "brokered";
    undisturbed_.Print(workers, "undisturbed", "while nothing died");
    after_kills_.Print(workers, "after_kills", "as something was killed");
    after_hangs_.Print(workers, "after_hangs", "as something hung, beyond the hang timeouts");
    ASSERT_OK(harness::WaitUntil("control, which was the last to die",
                                 [this] { return DriverPid() != 0; }));
    const bool has_followed = killed_[kDriver] + stopped_[kDriver] > 0;
    if (!has_followed) ASSERT_EQ(DriverPid(), driver_);
  }

  pid_t DriverPid() {
    const auto status = cluster_->operators().GetStatus();
    return status.ok() ? static_cast<pid_t>(status->services(0).driver_pid()) : 0;
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }

  void Round() {
    ASSERT_NO_FATAL_FAILURE(AddWorkers());
    dead_.clear();
    hung_.clear();
    hurt_.clear();
    batond_is_dead_ = hung_keeper_ = false;
    hang_timeouts_ = Clock::duration::zero();
    if (Draw(4) == 0) return Visit(undisturbed_);
    const uint64_t victims = IsNative() ? kBroker : kVictims;
    size_t first = Draw(victims), second = Draw(victims);                 // which may be the same
    if (first == kDriver && second == kBatond) std::swap(first, second);  // see Hurt()
    // Connections end with a driver that nobody follows.
    if (std::set{first, second} == std::set<size_t>{kDriver, kDriverTwin}) second = first;
    const pid_t processes[] = {Find(first), Find(second)};
    PassTime(Draw(kLatestKillUs));
    ASSERT_NO_FATAL_FAILURE(Hurt(first, processes[0]));
    if (second != first) {
      if (Draw(2) == 0) PassTime(Draw(kLatestKillUs));
      ASSERT_NO_FATAL_FAILURE(Hurt(second, processes[1]));
    }
    ASSERT_NO_FATAL_FAILURE(Visit(hung_.empty() ? after_kills_ : after_hangs_));
    for (const pid_t process : hung_) kill(process, SIGCONT);
    if (batond_is_dead_) {
      ASSERT_OK(cluster_->StartBatondAgain());
      batond_started_ = Clock::now();
    }
    ASSERT_NO_FATAL_FAILURE(AwaitService());
    // Several in a row that hung soon after their start: what was set at run time is dropped.
    if (hung_keeper_) ASSERT_NO_FATAL_FAILURE(FollowHungKeepers());
  }

  // A peer comes, is served and goes.
  void Visit(Arrivals& arrivals) {
    const Clock::time_point began = Clock::now();
    const auto visitor = cluster_->StartPeer(harness::PeerOptions());
    if (!visitor.ok()) AwaitService();  // the next keeper says why
    ASSERT_OK(visitor);
    arrivals.Add(Clock::now() - began, hang_timeouts_, hurt_);
    harness::ExpectNothingLost(**visitor);
  }

  // One that is not there, because it has died before, cannot be hurt.
  void Hurt(size_t victim, pid_t process) {
    if (process == 0) return;
    // batond kills a hung driver, unless it has just started and does not know that policy yet.
    // Where it hangs itself, systemd's watchdog kills it first; here is none.
    const bool batond_looks = !batond_is_dead_ && hung_.count(cluster_->batond().pid()) == 0 &&
                              Clock::now() - batond_started_ > std::chrono::seconds(3);
    const bool may_stop = victim != kDriver || batond_looks;
    const bool stops = Draw(4) == 0 && may_stop;
    ++(stops ? stopped_ : killed_)[victim];
    absl::StrAppend(&hurt_, " ", kNames[victim], stops ? " stopped" : " killed");
    ++ended_;
    if (stops) {
      hung_.insert(process);
      hung_keeper_ |= victim == kKeeper;
      // Peers need neither batond nor control.
      // batond looks at the driver twice in this time.
      if (victim == kKeeper || victim == kDriver) hang_timeouts_ += kKeeperHangTimeout;
      if (victim == kOwner) hang_timeouts_ += std::chrono::milliseconds(kHangTimeoutMs);
      if (victim == kBroker || victim == kBrokerTwin) hang_timeouts_ += kBrokerHangTimeout;
      kill(process, SIGSTOP);
    } else if (victim == kBatond) {
      ASSERT_OK(cluster_->KillBatond());
      batond_is_dead_ = true;
    } else {
      dead_.insert(process);
      kill(process, SIGKILL);
    }
  }

  pid_t Find(size_t victim) {
    switch (victim) {
      case kBatond:
        return cluster_->batond().pid();
      case kControl:
        return cluster_->ControlPid();
      case kKeeper:
        return Service().keeper_pid();
      case kDriver:
        if (const pid_t driver = DriverPid(); harness::TwinOf(driver) != 0) return driver;
        return 0;
      case kDriverTwin:
        return harness::TwinOf(DriverPid());
      case kBroker:
        return Service().broker_pid();
      case kBrokerTwin:
        return Service().twin_pid();
      default:
        return FindOwner();
    }
  }

  // Returns what the keeper says of it; empty: no keeper answers.
  v1::Service Service() {
    const auto seen = cluster_->keeper().Describe();
    return seen.ok() ? seen->service() : v1::Service();
  }

  pid_t FindOwner() {
    const auto seen = cluster_->keeper().Describe();
    if (!seen.ok() || seen->shards().empty()) return 0;
    const int shard = static_cast<int>(Draw(static_cast<uint64_t>(seen->shards_size())));
    return PidOf(*seen, seen->shards(shard).owner_worker_id());
  }

  static pid_t PidOf(const internal::Description& seen, uint64_t worker_id) {
    for (const v1::Worker& worker : seen.workers()) {
      if (worker.id() == worker_id) return static_cast<pid_t>(worker.pid());
    }
    return 0;
  }

  // Until a keeper answers, and every shard is owned by a process that lives.
  void AwaitService() {
    ASSERT_OK(harness::WaitUntil(
        "the service to be whole again",
        [&] {
          const auto seen = cluster_->keeper().Describe();
          return seen.ok() && dead_.count(static_cast<pid_t>(seen->service().keeper_pid())) == 0 &&
                 std::all_of(seen->shards().begin(), seen->shards().end(),
                             [&](const v1::Shard& shard) {
                               const pid_t owner = PidOf(*seen, shard.owner_worker_id());
                               return owner != 0 && dead_.count(owner) == 0;
                             });
        },
        harness::Patient(std::chrono::seconds(60))));
  }

  // Brokered ones are this test's children. One that was killed, hung or starved is replaced. A
  // successor owns its shards before its process has ended.
  void AddWorkers() {
    if (IsNative()) return;
    std::erase_if(workers_, [this](const auto& worker) {
      return dead_.count(worker->process->pid()) != 0 || worker->process->HasEnded();
    });
    while (workers_.size() < kBrokeredWorkers) {
      harness::LedgerOptions options;
      options.version = 1 + static_cast<int>(started_++ % 2);
      options.await_control = false;
      auto worker = cluster_->StartLedger(options);
      ASSERT_OK(worker);
      workers_.push_back(*std::move(worker));
    }
  }

  void FollowHungKeepers() {
    ASSERT_OK(harness::WaitUntil("control, by which the policy is set", [this] {
      return harness::SetPolicy(*cluster_, "on_keeper_hang: ON_KEEPER_HANG_RESTART").status == 0;
    }));
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<harness::LedgerWorker>> workers_;
  std::set<pid_t> dead_, hung_;                        // of this round
  Clock::duration hang_timeouts_ = {};                 // likewise
  std::string hurt_;                                   // likewise
  bool batond_is_dead_ = false, hung_keeper_ = false;  // likewise
  Clock::time_point batond_started_;
  pid_t driver_ = 0;
  std::array<unsigned long long, kVictims> killed_ = {}, stopped_ = {};
  uint64_t started_ = 0, ended_ = 0;
  Arrivals undisturbed_, after_kills_, after_hangs_;
};

TEST_P(BatonKillTest, shouldLoseNothingAndRefuseNobody) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(End(harness::Setting("BATON_KILLS", kKills),
                              harness::Setting("BATON_SEED", std::random_device()())));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

class DriverKillTest : public BatonKillTest {};

// The peer notices what it should not: connections end with a driver that nobody follows.
TEST_P(DriverKillTest, shouldBeCaughtByThePeer) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK(peer_->Settle());
  harness::KillUnfollowed(DriverPid());
  (void)peer_->Settle();
  const auto result = peer_->Stop();
  ASSERT_OK(result);
  EXPECT_FALSE(result->Flag("ok")) << result->text();
  EXPECT_GT(result->Count("disconnects"), 0u) << result->text();
}

INSTANTIATE_TEST_SUITE_P(Brokered, BatonKillTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Native, BatonKillTest, testing::Values(true));
INSTANTIATE_TEST_SUITE_P(Brokered, DriverKillTest, testing::Values(false));

}  // namespace
}  // namespace baton::crash
