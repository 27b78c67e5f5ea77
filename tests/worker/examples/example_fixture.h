// A Baton with workers of an example program, and clients that use it all the time.
#ifndef TESTS_WORKER_EXAMPLES_EXAMPLE_FIXTURE_H_
#define TESTS_WORKER_EXAMPLES_EXAMPLE_FIXTURE_H_

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/arena/layout.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/crash_points.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::examples {

inline constexpr std::chrono::seconds kTimeout{60};

struct ExampleOptions {
  int version = 1;
  bool test_hooks = false;
  std::string crash_at = {};  // as BATON_CRASH_AT; needs test hooks
  std::string config = {};    // nvmed's, its path; empty: the fixture's
  std::vector<std::string> arguments = {};
};

struct ExampleWorker {
  std::unique_ptr<harness::ChildProcess> process;
  uint64_t id = 0;
};

// The moment of a kill, not a wait for something: any duration is right.
inline void PassTime(uint64_t microseconds) {
  const timespec duration = {static_cast<time_t>(microseconds / 1'000'000),
                             static_cast<long>(microseconds % 1'000'000) * 1000};
  nanosleep(&duration, nullptr);
}

// `Load` is a client in a thread of its own: it has answers(), failed() and Stop().
template <typename Load>
class ExampleTest : public harness::ClusterFixture {
 protected:
  // `name`: of the service; its programs are `name`-v1 and so on.
  explicit ExampleTest(std::string name) : name_(std::move(name)) {}

  void Start(harness::ClusterOptions options) {
    options.service = name_;
    ASSERT_OK_AND_ASSIGN(cluster_, harness::Cluster::Start(std::move(options)));
  }

  // Ready when it returns.
  void StartWorker(const ExampleOptions& options, std::unique_ptr<ExampleWorker>* worker) {
    std::unique_ptr<harness::ChildProcess> process;
    ASSERT_NO_FATAL_FAILURE(Spawn(options, &process));
    ASSERT_NO_FATAL_FAILURE(AwaitReady(options, std::move(process), worker));
  }
  // `process`: what Spawn has started with these options.
  void AwaitReady(const ExampleOptions& options, std::unique_ptr<harness::ChildProcess> process,
                  std::unique_ptr<ExampleWorker>* worker) {
    auto started = std::make_unique<ExampleWorker>();
    started->process = std::move(process);
    const auto line = started->process->ReadLineWith(absl::StrCat(name_, " ready"), kTimeout);
    ASSERT_OK(line);
    unsigned long long id = 0;
    unsigned port = 0;
    ASSERT_EQ(std::sscanf(line->c_str(), "%*s ready version=%*d worker=%llu port=%u", &id, &port),
              2)
        << *line;
    started->id = id;
    port_ = static_cast<uint16_t>(port);
    // One that crashes by itself may be gone before it can be looked at.
    if (options.crash_at.empty()) ASSERT_OK(cluster_->WaitUntilReady(id));
    *worker = std::move(started);
  }

  virtual std::vector<std::string> ArgumentsOf(const ExampleOptions& options) const {
    std::vector<std::string> arguments = {
        "--socket", cluster_->SocketPath(), "--listen",
        absl::StrCat(verbs::testing::FabricUnderTest().host, ":", port_)};
    arguments.insert(arguments.end(), arguments_.begin(), arguments_.end());
    arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
    return arguments;
  }

  void Spawn(const ExampleOptions& options, std::unique_ptr<harness::ChildProcess>* process) {
    const std::string name =
        absl::StrCat(name_, "-v", options.version, options.test_hooks ? "-test-hooks" : "");
    const auto program = harness::Binaries().Find(name);
    ASSERT_OK(program);
    harness::ChildOptions child;
    child.program = *program;
    child.log_path = absl::StrCat(cluster_->directory(), "/", name_, "-", logs_.size(), ".log");
    logs_.push_back(child.log_path);
    child.arguments = ArgumentsOf(options);
    child.arguments.insert(child.arguments.end(), {"--name", name});
    if (!options.crash_at.empty()) {
      child.environment.emplace_back("BATON_CRASH_AT", options.crash_at);
    }
    ASSERT_OK_AND_ASSIGN(*process, harness::ChildProcess::Start(child));
  }

  // The program ends at once, and its log has the reason.
  void ExpectRefused(const ExampleOptions& options, const std::string& reason) {
    std::unique_ptr<harness::ChildProcess> refused;
    ASSERT_NO_FATAL_FAILURE(Spawn(options, &refused));
    const auto end = refused->WaitEnd(kTimeout);
    ASSERT_OK(end);
    EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 1) << *end;
    EXPECT_THAT(refused->LogTail(), ::testing::HasSubstr(reason));
  }

  static void ExpectInLog(const ExampleWorker& worker, const std::string& reason) {
    EXPECT_OK(harness::WaitUntil("the reason in the log", [&] {
      return worker.process->LogTail().find(reason) != std::string::npos;
    }));
  }

  // An upgrade to this program completes.
  void UpgradeTo(const std::string& program) {
    harness::UpgradeOptions options;
    options.program = program;
    options.plan.set_watch_window_ms(50);
    const auto upgrade = cluster_->StartUpgrade(options);
    ASSERT_OK(upgrade);
    const auto ended = cluster_->WaitUntilUpgradeEnds(upgrade->id());
    ASSERT_OK(ended);
    ASSERT_EQ(ended->phase(), v1::UPGRADE_PHASE_COMPLETED) << ended->ShortDebugString();
  }

  // A worker that is safe owns everything.
  void StartSafe() {
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &safe_));
    ASSERT_OK(cluster_->WaitUntilOwner(safe_->id));
  }

  // Returns when a worker that dies at that passing of `point` has been given the shards.
  void MakeDoomedOwner(const std::string& point, int passing) {
    ExampleOptions options;
    options.test_hooks = true;
    options.crash_at = absl::StrCat(point, ":", passing);
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, &doomed_));
    // It may die before the handoff is answered: that is the point.
    (void)cluster_->Handoff(doomed_->id);
  }

  void ExpectDeathAndRecovery() {
    const auto ended = doomed_->process->WaitEnd(kTimeout);
    ASSERT_OK(ended);
    ASSERT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << *ended;
    ASSERT_OK(cluster_->WaitUntilOwner(safe_->id));
  }

  // The clients lose nothing by the death of an owner at that passing of `point`.
  void ExpectProgressOverDeathAt(const std::string& point, int passing) {
    SCOPED_TRACE(absl::StrCat(point, ":", passing));
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, passing));
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }

  // ---------------------------------------------------------------- native workers

  // `object`: a file of this tree. Every worker has `arguments`, besides where it listens.
  // `workers`: with few, each lives too shortly, and the next are forked later and later.
  static std::vector<std::string> NativeArguments(const std::string& object,
                                                  const std::vector<std::string>& arguments,
                                                  uint32_t workers) {
    const auto path = harness::Binaries().Find(object);
    EXPECT_OK(path);
    std::vector<std::string> all = {
        "--native",
        path.value_or(""),
        "--max-workers",
        absl::StrCat(std::min(4 * workers, arena::kMaxWorkers)),
        "--native-workers",
        absl::StrCat(workers),
        "--native-argument=--socket=unused",
        absl::StrCat("--native-argument=--listen=", verbs::testing::FabricUnderTest().host, ":0")};
    for (const std::string& argument : arguments) {
      all.push_back("--native-argument=" + argument);
    }
    return all;
  }

  // Native workers of a cluster that is started after this die where crash_points_ says, if their
  // object has test hooks.
  void MakeCrashPoints() { ASSERT_OK_AND_ASSIGN(crash_points_, harness::CrashPoints::Create()); }
  // The clients lose nothing by the death of the native worker for which crash_points_ is armed.
  void ExpectNativeDeath() {
    ASSERT_OK(harness::WaitUntil(
        "a death", [this] { return !crash_points_->is_armed(); }, kTimeout));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress(2));
  }
  void ExpectProgressOverNativeDeathAt(const std::string& point, uint32_t passing) {
    SCOPED_TRACE(absl::StrCat(point, ":", passing));
    crash_points_->Arm(point, passing);
    ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
  }
  // A worker dies there that takes over from one that is killed.
  void ExpectProgressOverNativeHeirsDeathAt(const std::string& point) {
    SCOPED_TRACE(point);
    crash_points_->Arm(point, 1);
    ASSERT_NO_FATAL_FAILURE(KillOwner(0));
    ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
  }

  // Kills the owner of a shard, whoever that is.
  void KillOwner(uint32_t shard) {
    uint64_t owner = 0;
    ASSERT_OK(harness::WaitUntil(
        "an owner",
        [&] {
          const auto service = cluster_->GetService();
          if (service.ok()) owner = service->shards(static_cast<int>(shard)).owner_worker_id();
          return owner != 0;
        },
        kTimeout));
    ASSERT_OK(cluster_->KillWorker(owner, kTimeout));
  }

  // ---------------------------------------------------------------- kills at random moments

  struct RandomKills {
    uint64_t kills = 0;
    uint64_t latest_us = 0;       // after a successor is ready; its owner is killed sooner
    uint64_t period = 1;          // a client's position() while it works is below it, about
    std::function<void()> after;  // each kill
    std::function<void(const ExampleWorker&)> before;  // some of the kills, with the heir
  };

  // Kills brokered owners, from worker_ on, and some heirs while they take over. Processes start
  // while the clients are served.
  void KillAtRandom(const RandomKills& plan, std::mt19937_64& random) {
    std::unique_ptr<ExampleWorker> heir;
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &heir));
    for (uint64_t i = 0; i < plan.kills; ++i) {
      SCOPED_TRACE(absl::StrCat("kill ", i));
      const ExampleOptions options = {.version = 1 + static_cast<int>(i % 2)};
      std::unique_ptr<harness::ChildProcess> next;
      ASSERT_NO_FATAL_FAILURE(Spawn(options, &next));
      PassTime(random() % plan.latest_us);
      if (plan.before && random() % 4 == 0) ASSERT_NO_FATAL_FAILURE(plan.before(*heir));
      ASSERT_NO_FATAL_FAILURE(KillNow(&worker_, plan.period));
      worker_ = std::exchange(heir, nullptr);
      if (i + 1 < plan.kills && random() % 4 == 0) {
        ++i;
        PassTime(random() % kTakeoverUs);
        ASSERT_NO_FATAL_FAILURE(KillNow(&worker_, plan.period));
        ASSERT_NO_FATAL_FAILURE(AwaitReady(options, std::move(next), &worker_));
        ASSERT_NO_FATAL_FAILURE(StartWorker(options, &heir));
      } else {
        ASSERT_NO_FATAL_FAILURE(AwaitReady(options, std::move(next), &heir));
      }
      if (plan.after) ASSERT_NO_FATAL_FAILURE(plan.after());
      if (i % 5 == 4) ASSERT_NO_FATAL_FAILURE(ExpectProgress(2));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    ExpectSpread();
  }
  void KillNow(std::unique_ptr<ExampleWorker>* worker, uint64_t period) {
    NoteMoment(period);
    ASSERT_OK((*worker)->process->Kill());
    worker->reset();
  }

  // Does so with native workers, of which the keeper has enough. Clients get on in between, but
  // not always.
  void KillNativeAtRandom(const RandomKills& plan, uint32_t shards, std::mt19937_64& random) {
    for (uint64_t i = 0; i < plan.kills; ++i) {
      SCOPED_TRACE(absl::StrCat("kill ", i));
      PassTime(random() % plan.latest_us);
      NoteMoment(plan.period);
      ASSERT_NO_FATAL_FAILURE(KillOwner(static_cast<uint32_t>(random() % shards)));
      if (plan.after) ASSERT_NO_FATAL_FAILURE(plan.after());
      if (random() % 4 != 0) ASSERT_NO_FATAL_FAILURE(ExpectProgress(1));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    ExpectSpread();
  }

  // Notes where in its work each client is.
  void NoteMoment(uint64_t period) {
    for (const auto& load : loads_) {
      ++moments_[std::min(load->position(), period - 1) * kParts / period];
    }
  }
  // If there were enough kills to tell: no part of the clients' work was spared.
  void ExpectSpread() const {
    const uint64_t all = std::accumulate(moments_.begin(), moments_.end(), uint64_t{0});
    std::printf("kills by the part of a client's work:");
    for (const uint64_t count : moments_) {
      std::printf(" %llu", static_cast<unsigned long long>(count));
    }
    std::printf("\n");
    if (all < 100 * kParts) return;
    EXPECT_GT(*std::min_element(moments_.begin(), moments_.end()), all / kParts / 20);
  }

  // Each client has had some more answers. It began to ask for all of them after this was called,
  // except for the first.
  void ExpectProgress(uint64_t answers = 10) {
    for (const auto& load : loads_) {
      const uint64_t enough = load->answers() + answers;
      EXPECT_OK(harness::WaitUntil(
          "answers", [&] { return load->failed() || load->answers() >= enough; }, kTimeout));
      if (load->failed()) ASSERT_OK(load->Stop());
    }
  }

  // Ends all clients: each found what it had to.
  void ExpectNothingLost() {
    for (const auto& load : loads_) EXPECT_OK(load->Stop());
    loads_.clear();
  }

  // No connection is left behind.
  void ExpectNoConnections() {
    EXPECT_OK(harness::WaitUntil("all connections to be gone", [&] {
      const auto list = cluster_->operators().ListConnections(name_);
      return list.ok() && list->connections_size() == 0;
    }));
  }

  void TearDown() override {
    loads_.clear();
    ClusterFixture::TearDown();
    if (!HasFailure()) return;
    for (const std::string& path : logs_) {
      std::ifstream file(path);
      std::cerr << "---- " << path << "\n" << file.rdbuf();
    }
  }

  static constexpr size_t kParts = 8;
  static constexpr uint64_t kTakeoverUs = 5000;  // some more than taking over takes

  std::unique_ptr<harness::CrashPoints> crash_points_;
  std::array<uint64_t, kParts> moments_ = {};  // kills in each part of the clients' work
  const std::string name_;
  std::vector<std::string> arguments_;  // of every worker
  std::vector<std::unique_ptr<Load>> loads_;
  uint16_t port_ = 0;
  std::vector<std::string> logs_;
  std::unique_ptr<ExampleWorker> worker_;         // that most tests begin with
  std::unique_ptr<ExampleWorker> safe_, doomed_;  // of tests in which workers kill themselves
};

}  // namespace baton::examples

#endif  // TESTS_WORKER_EXAMPLES_EXAMPLE_FIXTURE_H_
