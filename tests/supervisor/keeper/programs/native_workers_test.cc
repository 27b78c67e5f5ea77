// Which processes the keeper of a native service has its driver fork, and ends. They are real;
// their device only says that it survives a fork, and nothing is connected to it.
#include "supervisor/keeper/programs/native_workers.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/native/host.h"
#include "supervisor/driver/workers/fork_worker.h"
#include "supervisor/driver/workers/worker_forks.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/native/unmapper_of.h"
#include "tests/lib/verbs/nic_process.h"
#include "tests/supervisor/keeper/inline_driver_client.h"

// The driver's executable exports the same.
extern "C" BatonNativeHost* baton_native_host() {
  return baton::driver_process::HostOfThisProcess();
}

namespace baton::keeper {
namespace {

constexpr uint32_t kWorkers = 2;

class NativeWorkersTest : public ::testing::Test, private DriverListener {
 protected:
  NativeWorkersTest() { driver_.SetListener(this); }

  static internal::KeeperConfig Config() {
    internal::KeeperConfig config;
    v1::ServiceConfig& service = *config.mutable_service();
    service.set_name("ledger");
    service.set_heartbeat_ms(1000);
    service.set_hang_timeout_ms(600'000);
    service.set_stop_timeout_ms(100);
    service.set_shards(1);
    service.mutable_native()->set_object(Object("tests/supervisor/keeper/sleeper.so"));
    service.mutable_native()->set_workers(kWorkers);
    return config;
  }
  static arena::Arena MakeArena() {
    arena::Shape shape = driver::testing::TestShape();
    shape.pooled_queue_pairs = 2;
    shape.workers = 16;
    return arena::Arena::Create(shape, "ledger").value();
  }
  static std::string Object(const std::string& name) {
    return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/", name);
  }
  static internal::Program Program(const std::string& object, const std::string& argument) {
    internal::Program program;
    program.set_path(Object(object));
    program.add_arguments(argument);
    return program;
  }
  // Returns the program of a worker that attaches and stays alive.
  static internal::Program Ledger() {
    internal::Program ledger =
        Program("worker/examples/ledger/ledger-v1.so", "--socket=of-the-keeper");
    ledger.add_arguments("--window=8");  // as deep as the arena's queues
    return ledger;
  }

  void OnEvent(const internal::EngineEvent& event) override {
    told_.push_back(absl::StrCat(event.kind(), ": ", event.message()));
  }
  void OnFenced(uint64_t) override {}
  void OnThreadEnded(uint64_t worker_id) override { sessions_.OnThreadEnded(worker_id); }
  void OnDeviceLost(const absl::Status&) override {}

  // Returns the lines that were told and have all of `words` in them.
  std::vector<std::string> Told(const std::vector<std::string>& words) const {
    std::vector<std::string> found;
    for (const std::string& line : told_) {
      bool all = true;
      for (const std::string& word : words) all = all && absl::StrContains(line, word);
      if (all) found.push_back(line);
    }
    return found;
  }
  void Until(size_t count, const std::vector<std::string>& words) {
    const auto deadline =
        std::chrono::steady_clock::now() + harness::Patient(std::chrono::seconds(20));
    while (Told(words).size() < count) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << ::testing::PrintToString(told_);
      loop_.run_one_for(std::chrono::milliseconds(100));
      engine_->Turn();
      driver_.LookAtLocks();
      forks_->Turn();
      driver_.DeliverNews();
    }
  }
  static pid_t PidIn(const std::string& line) {
    int pid = 0;
    const size_t at = line.find("pid ") + 4;
    BATON_CHECK(
        absl::SimpleAtoi(line.substr(at, line.find_first_not_of("0123456789", at) - at), &pid));
    return pid;
  }

  boost::asio::io_context loop_{1};
  const internal::KeeperConfig config_ = Config();
  std::vector<std::string> told_;
  EventLog events_{"ledger", [this](const v1::Event& event) {
                     told_.push_back(absl::StrCat(event.kind(), ": ", event.message()));
                   }};
  arena::Arena arena_ = MakeArena();
  const std::unique_ptr<verbs::Device> device_ = verbs::testing::OpenWithNicProcess().value();
  driver_process::NewsQueue news_;
  std::unique_ptr<driver_process::NativeEngine> engine_ =
      driver_process::NativeEngine::Create(&arena_, device_.get(), &news_, {}).value();
  std::unique_ptr<driver_process::WorkerForks> forks_ =
      driver_process::WorkerForks::Create(
          *engine_, config_.service().native(),
          FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)),
          ReplaceableCode(harness::Binaries().Find("libbaton-driver.so").value()),
          [](std::string_view, const std::string&) {})
          .value();
  testing::InlineDriverClient driver_{config_.service(), *engine_, news_, forks_.get()};
  Policies policies_{config_.service(), driver_};
  WorkerSessions sessions_{CommonParts{loop_, config_, driver_, policies_, events_}};
  NativeWorkers workers_{CommonParts{loop_, config_, driver_, policies_, events_}, sessions_};
};

TEST_F(NativeWorkersTest, shouldForkAnotherForEachThatEnds) {
  workers_.KeepRunning();
  const std::vector<std::string> forked = Told({"native_worker_forked"});
  ASSERT_EQ(forked.size(), kWorkers);
  kill(PidIn(forked[0]), SIGKILL);
  Until(1, {"native_worker_ended: worker 1", "signal 9"});
  Until(kWorkers + 1, {"native_worker_forked"});
}

// Each process that a driver without free descriptors forks is known to the next keeper, and the
// driver reaps it. One that the keeper has not got is killed.
TEST_F(NativeWorkersTest, shouldLeaveNoProcessUnknownAtTheLimitOfDescriptors) {
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at memory through a pipe: it needs descriptors";
#endif
  const std::vector<pid_t> others = harness::ChildrenOf(getpid());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto lowest_free = [] { return static_cast<rlim_t>(CopyOf(0).get()); };
  std::set<pid_t> given;
  for (uint32_t slot = 0; slot < arena_.shape().workers; ++slot) {
    internal::WorkerPlace place;
    place.set_slot(slot);
    place.set_id(slot + 1);
    const rlimit low = {lowest_free() + slot, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    const absl::StatusOr<DriverClient::ForkedWorker> fork = driver_.Fork(place, Ledger());
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (fork.ok()) given.insert(fork->facts.pid());
  }
  EXPECT_FALSE(given.empty());
  const rlimit none = {lowest_free(), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status restored = workers_.Restore({});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(restored.code(), absl::StatusCode::kResourceExhausted) << restored;
  const absl::StatusOr<std::vector<DriverClient::ForkedWorker>> forks = driver_.ListForks();
  ASSERT_TRUE(forks.ok()) << forks.status();
  EXPECT_GT(forks->size(), given.size());
  for (const DriverClient::ForkedWorker& fork : *forks) {
    const pid_t pid = fork.facts.pid();
    if (given.contains(pid)) (void)SendSignal(fork.pidfd.get(), SIGKILL);
    siginfo_t end = {};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOWAIT), 0);
    EXPECT_NE(forks_->Reap(pid).how(), "");
  }
  for (const pid_t child : harness::ChildrenOf(getpid())) {
    EXPECT_NE(std::find(others.begin(), others.end(), child), others.end()) << child;
  }
}

// A service may have a use for a signal that the driver ignores.
TEST_F(NativeWorkersTest, shouldForkWorkersThatIgnoreNoSignal) {
  const auto before = signal(SIGUSR1, SIG_IGN);
  const absl::StatusOr<StartedProgram> worker = workers_.Start(Ledger());
  ASSERT_TRUE(worker.ok()) << worker.status();
  Until(1, {"worker_attached: worker 1 "});
  kill(worker->pid, SIGUSR1);
  siginfo_t end = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(worker->pid), &end, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(end.si_code, CLD_KILLED);
  EXPECT_EQ(end.si_status, SIGUSR1);
  signal(SIGUSR1, before);
}

TEST_F(NativeWorkersTest, shouldKillWhoRunsTheOldProgramAndHasNotAttached) {
  workers_.KeepRunning();
  workers_.OnServing(Program("tests/supervisor/keeper/sleeper.so", "new"));
  EXPECT_EQ(Told({"native_worker_forked"}).size(), 2 * kWorkers);
  for (const char* old : {"worker 1 ", "worker 2 "}) {
    Until(1, {"native_worker_ended", old, "signal 9"});
  }
  // The new ones are enough.
  loop_.run_one_for(std::chrono::milliseconds(0));
  EXPECT_EQ(Told({"native_worker_forked"}).size(), 2 * kWorkers);
  EXPECT_TRUE(Told({"asked_to_stop"}).empty());
}

TEST_F(NativeWorkersTest, shouldNotLetAnObjectAttachInAProcessThatItHasForked) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string file = directory.File("status");
  ASSERT_TRUE(workers_.Start(Program("tests/supervisor/keeper/daemon.so", file)).ok());
  Until(1, {"native_worker_ended: worker 1 "});
  EXPECT_TRUE(Told({"worker_attached"}).empty());
  std::stringstream status;
  status << std::ifstream(file).rdbuf();
  EXPECT_THAT(status.str(), ::testing::HasSubstr("this process was forked by the object"));
}

// VmFlags (proc(5)) of what a process maps of an arena.
std::vector<std::string> FlagsOfMemories(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/smaps"));
  std::vector<std::string> flags;
  bool is_memory = false;
  for (std::string line; std::getline(file, line);) {
    if (absl::StrContains(line.substr(0, line.find(' ')), "-")) {
      is_memory = absl::StrContains(line, "memfd:baton-");
    } else if (is_memory && line.rfind("VmFlags:", 0) == 0) {
      flags.push_back(line + " ");
    }
  }
  return flags;
}

// What it has inherited as little as what it has mapped itself.
TEST_F(NativeWorkersTest, shouldGiveNoChildOfAWorkerTheArenaNorACoreDump) {
  const absl::StatusOr<StartedProgram> worker = workers_.Start(Ledger());
  ASSERT_TRUE(worker.ok()) << worker.status();
  // It maps them after it was told that it is attached.
  Until(1, {"worker_ready"});
  const std::vector<std::string> memories = FlagsOfMemories(worker->pid);
  EXPECT_GE(memories.size(), 7u);
  for (const std::string& flags : memories) {
    EXPECT_THAT(flags, ::testing::HasSubstr(" dc "));
    EXPECT_THAT(flags, ::testing::HasSubstr(" dd "));
  }
}

#ifndef BATON_SANITIZED  // there is none then
TEST_F(NativeWorkersTest, shouldGiveEachWorkerAnUnmapper) {
  const absl::StatusOr<StartedProgram> worker = workers_.Start(Ledger());
  ASSERT_TRUE(worker.ok()) << worker.status();
  Until(1, {"worker_ready"});
  EXPECT_GT(native::UnmapperOf(worker->pid), 0);
}
#endif

TEST_F(NativeWorkersTest, shouldKillWhoDoesNotEndWhenAsked) {
  const absl::StatusOr<StartedProgram> old = workers_.Start(Ledger());
  ASSERT_TRUE(old.ok()) << old.status();
  Until(1, {"worker_attached: worker 1 "});
  kill(old->pid, SIGSTOP);
  workers_.OnServing(Program("tests/supervisor/keeper/sleeper.so", "new"));
  EXPECT_EQ(Told({"worker_asked_to_stop: worker 1 "}).size(), 1u);
  Until(1, {"worker_killed: worker 1 ", "it was asked to end 100 ms ago"});
  Until(1, {"native_worker_ended: worker 1 "});
}

}  // namespace
}  // namespace baton::keeper
