// A Baton with workers of an example program, and clients that use it all the time.
#ifndef TESTS_WORKER_EXAMPLES_EXAMPLE_FIXTURE_H_
#define TESTS_WORKER_EXAMPLES_EXAMPLE_FIXTURE_H_

#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
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
    auto started = std::make_unique<ExampleWorker>();
    ASSERT_NO_FATAL_FAILURE(Spawn(options, &started->process));
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
