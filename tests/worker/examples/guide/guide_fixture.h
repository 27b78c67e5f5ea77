// A Baton with workers of the guide (worker/guide.md), and clients that count.
#ifndef TESTS_WORKER_EXAMPLES_GUIDE_GUIDE_FIXTURE_H_
#define TESTS_WORKER_EXAMPLES_GUIDE_GUIDE_FIXTURE_H_

#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/crash_points.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"
#include "worker/examples/guide/line_client.h"

namespace baton::guide {

inline constexpr std::chrono::seconds kTimeout{60};

inline std::unique_ptr<LineClient> Connect(uint16_t port) {
  auto device = verbs::testing::OpenDevice(verbs::testing::FabricUnderTest());
  EXPECT_OK(device);
  auto client =
      LineClient::Connect(*std::move(device), {verbs::testing::FabricUnderTest().host, port});
  EXPECT_OK(client);
  return client.ok() ? *std::move(client) : nullptr;
}

// The number that an answer begins with.
inline uint64_t NumberOf(const std::string& answer) {
  return std::strtoull(answer.c_str(), nullptr, 10);
}

// A client in a thread of its own: sends "1" until Stop. Every answer has to be one more than the
// one before: a message that is lost, or dealt with twice, shows in all answers after it.
class Counting {
 public:
  explicit Counting(uint16_t port) : thread_([this, port] { Run(port); }) {}
  ~Counting() { Join(); }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

  // Rests between two messages from now on, which leaves the processors to workers that start.
  void SlowDown() { rests_ = true; }
  uint64_t answers() const { return answers_; }
  bool failed() const { return failed_; }
  // Returns what is wrong, if anything.
  absl::Status Stop() {
    Join();
    return status_;
  }

 private:
  void Join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void Run(uint16_t port) {
    const auto client = Connect(port);
    if (client == nullptr) status_ = absl::UnavailableError("no connection");
    while (status_.ok() && !stop_) {
      const auto answer = client->Ask("1");
      status_ = answer.status();
      if (answer.ok() && NumberOf(*answer) != ++answers_) {
        status_ = absl::DataLossError(absl::StrCat("answer ", answers_.load(), " is ", *answer));
      }
      if (rests_) std::this_thread::sleep_for(kRest);
    }
    failed_ = !status_.ok();
  }

  static constexpr std::chrono::milliseconds kRest{2};

  absl::Status status_;  // of the thread, until it was joined
  std::atomic<uint64_t> answers_{0};
  std::atomic<bool> stop_{false}, failed_{false}, rests_{false};
  std::thread thread_;
};

struct GuideWorker {
  std::unique_ptr<harness::ChildProcess> process;
  uint64_t id = 0;
};

class GuideTest : public harness::ClusterFixture {
 protected:
  void StartCluster(std::vector<std::string> batond_arguments = {},
                    const std::string& service = "counter") {
    harness::ClusterOptions options;
    options.service = service;
    options.shards = 1;
    options.batond_arguments = std::move(batond_arguments);
    ASSERT_OK_AND_ASSIGN(cluster_, harness::Cluster::Start(std::move(options)));
  }

  // A cluster whose workers are native, and listen.
  void StartNative(const std::string& object, std::vector<std::string> more = {}) {
    // With few, each lives too shortly, and the next are forked later and later.
    if (crash_points_ != nullptr) {
      more.insert(more.end(), {"--max-workers", "32", "--native-workers", "8"});
    }
    more.insert(more.end(), {"--native", PathOf(object), "--native-argument=unused",
                             "--native-argument=127.0.0.1:0"});
    ASSERT_NO_FATAL_FAILURE(StartCluster(std::move(more)));
    ASSERT_OK(cluster_->WaitUntilListening());
  }

  // A cluster with a worker.
  void StartService(const std::string& program) {
    ASSERT_NO_FATAL_FAILURE(StartCluster());
    ASSERT_NO_FATAL_FAILURE(StartWorker(program, &worker_));
  }

  // Arguments of every program of the guide: the socket, and where it listens.
  std::vector<std::string> Arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {
        cluster_->SocketPath(),
        absl::StrCat(verbs::testing::FabricUnderTest().host, ":", cluster_->port())};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  static std::string PathOf(const std::string& name) {
    const auto path = harness::Binaries().Find(absl::StrCat("worker/examples/guide/", name));
    EXPECT_OK(path);
    return path.ok() ? *path : "";
  }

  // `crash_at`: where it kills itself, for a program with test hooks (lib/base/crash_point.h).
  void Spawn(const std::string& name, const std::vector<std::string>& more,
             const std::string& crash_at, std::unique_ptr<harness::ChildProcess>* process) {
    harness::ChildOptions child;
    child.program = PathOf(name);
    child.arguments = Arguments(more);
    child.log_path = absl::StrCat(cluster_->directory(), "/", name, ".log");
    if (!crash_at.empty()) child.environment.emplace_back("BATON_CRASH_AT", crash_at);
    ASSERT_OK_AND_ASSIGN(*process, harness::ChildProcess::Start(child));
  }

  // Ready when it returns.
  void StartWorker(const std::string& name, std::unique_ptr<GuideWorker>* worker,
                   const std::vector<std::string>& more = {}, const std::string& crash_at = "") {
    auto started = std::make_unique<GuideWorker>();
    ASSERT_NO_FATAL_FAILURE(Spawn(name, more, crash_at, &started->process));
    ASSERT_OK(harness::WaitUntil(absl::StrCat(name, " to be ready"), [&] {
      started->id = ReadyWorker(started->process->pid());
      return started->id != 0;
    }));
    ASSERT_OK(cluster_->WaitUntilListening());
    *worker = std::move(started);
  }

  void KillOwner() {
    uint64_t owner = 0;
    ASSERT_OK(harness::WaitUntil("an owner", [&] {
      const auto service = cluster_->GetService();
      if (service.ok()) owner = service->shards(0).owner_worker_id();
      return owner != 0;
    }));
    ASSERT_OK(cluster_->operators().KillWorker(kService, owner));
    ASSERT_OK(cluster_->WaitUntilGone(owner));
  }

  // The ready worker that is this process; 0: there is none.
  uint64_t ReadyWorker(pid_t pid) const {
    const auto service = cluster_->GetService();
    if (!service.ok()) return 0;
    for (const v1::Worker& worker : service->workers()) {
      if (worker.pid() == pid && worker.state() == v1::WORKER_STATE_READY) return worker.id();
    }
    return 0;
  }

  // A safe worker owns the shard. For each point another one gets it, dies there, and the safe one
  // goes on.
  void KillAt(const std::string& program, const std::vector<std::string>& points,
              const GuideWorker& safe, const std::vector<std::string>& more = {}) {
    SlowDown();
    for (const std::string& point : points) {
      SCOPED_TRACE(point);
      std::unique_ptr<GuideWorker> doomed;
      ASSERT_NO_FATAL_FAILURE(StartWorker(program, &doomed, more, point));
      // It may die before the handoff is answered.
      cluster_->Handoff(doomed->id).IgnoreError();
      const auto ended = doomed->process->WaitEnd(kTimeout);
      ASSERT_OK(ended);
      ASSERT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << *ended;
      ASSERT_OK(cluster_->WaitUntilOwner(safe.id));
      ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    }
  }

  // Native workers of a cluster that is started after this die where crash_points_ says, if their
  // object has test hooks.
  void MakeCrashPoints() { ASSERT_OK_AND_ASSIGN(crash_points_, harness::CrashPoints::Create()); }
  // `point`: as BATON_CRASH_AT has it, "name:n".
  void Arm(const std::string& point) {
    const size_t colon = point.find(':');
    crash_points_->Arm(point.substr(0, colon),
                       static_cast<uint32_t>(std::strtoul(&point[colon + 1], nullptr, 10)));
  }
  void ExpectNativeDeath() {
    ASSERT_OK(harness::WaitUntil(
        "a death", [this] { return !crash_points_->is_armed(); }, kTimeout));
  }
  // Native owners die at each point, and the clients that count go on.
  void KillNativeAt(const std::vector<std::string>& points) {
    SlowDown();
    for (const std::string& point : points) {
      SCOPED_TRACE(point);
      Arm(point);
      ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
      ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    }
  }

  void StartCounting(int clients) {
    for (int i = 0; i < clients; ++i) {
      counting_.push_back(std::make_unique<Counting>(cluster_->port()));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }

  // Has the clients rest between two messages. Owners die at named points, which a few messages
  // reach.
  void SlowDown() {
    for (const auto& client : counting_) client->SlowDown();
  }

  // Each client has been answered several times since this was called.
  void ExpectProgress() {
    for (const auto& client : counting_) {
      const uint64_t enough = client->answers() + 3;
      EXPECT_OK(harness::WaitUntil(
          "answers", [&] { return client->failed() || client->answers() >= enough; }, kTimeout));
      if (client->failed()) ASSERT_OK(client->Stop());
    }
  }

  // Stops all clients: nothing was lost, and nothing happened twice. Returns how many answers they
  // had.
  uint64_t StopCounting() {
    uint64_t answers = 0;
    for (const auto& client : counting_) {
      EXPECT_OK(client->Stop());
      answers += client->answers();
    }
    counting_.clear();
    return answers;
  }

  void Upgrade(const std::string& name, const std::vector<std::string>& more,
               v1::UpgradePhase phase, uint32_t watch_ms = 100, v1::Upgrade* upgrade = nullptr) {
    v1::UpgradePlan plan;
    plan.set_exec(PathOf(name));
    plan.set_watch_window_ms(watch_ms);
    plan.set_replace_arguments(true);
    for (const std::string& argument : Arguments(more)) plan.add_arguments(argument);
    const auto started = cluster_->operators().Upgrade(kService, plan);
    ASSERT_OK(started);
    const auto ended = cluster_->WaitUntilUpgradeEnds(started->upgrade().id());
    ASSERT_OK(ended);
    EXPECT_EQ(ended->phase(), phase) << ended->ShortDebugString();
    if (upgrade != nullptr) *upgrade = *ended;
  }

  void TearDown() override {
    counting_.clear();
    ClusterFixture::TearDown();
  }

  static constexpr char kService[] = "counter";
  std::unique_ptr<harness::CrashPoints> crash_points_;
  std::unique_ptr<GuideWorker> worker_;  // that most tests begin with
  std::vector<std::unique_ptr<Counting>> counting_;
};

}  // namespace baton::guide

#endif  // TESTS_WORKER_EXAMPLES_GUIDE_GUIDE_FIXTURE_H_
