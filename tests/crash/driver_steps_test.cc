// baton-driver dies, and its twin is killed at each system call of its takeover, and after each of
// many instructions: the twin that it has forked before takes over, and peers notice nothing.
//
// BATON_DRIVER_STEP: every how many of these places a twin is killed at (41); 1: at each.
// BATON_DRIVER_FIRST: the first of them (1).
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/base/status.h"
#include "tests/crash/steps_fixture.h"
#include "tests/crash/traced_process.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

constexpr uint64_t kInstructions = 1000;
// Two drivers die for each, and of 20 that die within 0.1 s of their takeover the last is not
// followed.
constexpr uint64_t kKillsOfABaton = 8;

class DriverSteps : public StepsTest {
 protected:
  // `advance` runs a twin, which has just forked its own, to the place of this number, from 1 to
  // `places`.
  using Advance = std::function<absl::Status(pid_t twin, uint64_t place)>;
  void KillTwins(uint64_t places, const Advance& advance) {
    const Plan plan = {"twins of drivers", harness::Setting("BATON_DRIVER_STEP", 41),
                       harness::Setting("BATON_DRIVER_FIRST", 1), kKillsOfABaton};
    KillAtEach(plan, places, [&](uint64_t place, uint64_t /*nth*/, bool /*last*/) {
      pid_t twin = 0;
      ASSERT_NO_FATAL_FAILURE(KillDriver(&twin));
      ASSERT_OK(advance(twin, place));
      ASSERT_NO_FATAL_FAILURE(KillTraced(twin));
      ASSERT_NO_FATAL_FAILURE(AwaitService(twin));
    });
  }

  void Begin() override {
    ASSERT_NO_FATAL_FAILURE(StartBaton());
    if (!IsNative()) ASSERT_NO_FATAL_FAILURE(StartWorker(1, &owner_));
    ASSERT_NO_FATAL_FAILURE(StartLoad());
  }

  void End() override {
    ASSERT_NO_FATAL_FAILURE(ExpectNothingLostUntilNow());
    owner_.reset();
    ASSERT_NO_FATAL_FAILURE(StopBaton());
  }

  // Returns the driver's twin, stopped, once it has forked a twin of its own.
  void KillDriver(pid_t* twin) {
    pid_t driver = 0;
    // A fork may have been due when it was asked for: it replaces the twin soon.
    ASSERT_OK(harness::WaitUntil("a driver whose twin stays", [&] {
      const auto status = cluster_->operators().GetStatus();
      if (!status.ok()) return false;
      const v1::Service& service = status->services(0);
      driver = service.driver_pid();
      const pid_t before = std::exchange(*twin, service.driver_twin_pid());
      return *twin != 0 && *twin == before && (IsNative() || service.twin_pid() != 0);
    }));
    ASSERT_OK(Trace(PTRACE_SEIZE, *twin, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    ASSERT_OK(Trace(PTRACE_INTERRUPT, *twin, 0));
    int status = 0;
    ASSERT_OK(AwaitStop(*twin, &status));
    ASSERT_EQ(kill(driver, SIGKILL), 0);
    ASSERT_NO_FATAL_FAILURE(RunToFork(*twin));
  }

  // To the exit from the next fork.
  static void RunToFork(pid_t process) {
    do {
      ASSERT_OK(RunToCall(process));
    } while (RegistersOf(process).orig_rax != SYS_clone);
    ASSERT_OK(RunToCall(process));
  }

  static void KillTraced(pid_t process) {
    ASSERT_EQ(kill(process, SIGKILL), 0);
    int status = 0;
    ASSERT_OK(AwaitStop(process, &status));
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
  }

  // Until a driver serves that is none of the dead, with a twin, and new peers are served.
  void AwaitService(pid_t dead) {
    ASSERT_OK(harness::WaitUntil("the next driver to serve", [&] {
      const auto description = cluster_->keeper().Describe();
      if (!description.ok()) return false;
      const v1::Service& service = description->service();
      return service.driver_pid() != dead && service.driver_twin_pid() != 0 &&
             std::all_of(description->shards().begin(), description->shards().end(),
                         [](const v1::Shard& shard) { return shard.owner_worker_id() != 0; });
    }));
    auto newcomer = cluster_->StartPeer(harness::PeerOptions());
    ASSERT_OK(newcomer);
    harness::ExpectNothingLost(**newcomer);
  }

  // How many entries and exits there are before a twin forks again, when it has taken over.
  void CountCalls(uint64_t* count) {
    ASSERT_NO_FATAL_FAILURE(Begin());
    pid_t twin = 0;
    ASSERT_NO_FATAL_FAILURE(KillDriver(&twin));
    do {
      ASSERT_OK(RunToCall(twin));
      ++*count;
    } while (RegistersOf(twin).orig_rax != SYS_clone);
    // The first fork came before the takeover, which has more calls than this.
    ASSERT_GT(*count, 100u);
    ASSERT_NO_FATAL_FAILURE(KillTraced(twin));
    ASSERT_NO_FATAL_FAILURE(AwaitService(twin));
    ASSERT_NO_FATAL_FAILURE(End());
  }

 private:
  std::unique_ptr<harness::LedgerWorker> owner_;
};

TEST_P(DriverSteps, shouldBeFollowedWhereverItsTakingOverEnds) {
  uint64_t calls = 0;
  ASSERT_NO_FATAL_FAILURE(CountCalls(&calls));
  KillTwins(calls, [](pid_t twin, uint64_t place) {
    for (uint64_t i = 0; i < place; ++i) BATON_RETURN_IF_ERROR(RunToCall(twin));
    return absl::OkStatus();
  });
}

TEST_P(DriverSteps, shouldBeFollowedAfterEachInstruction) {
  KillTwins(kInstructions, [](pid_t twin, uint64_t place) { return Step(twin, place); });
}

INSTANTIATE_TEST_SUITE_P(Workers, DriverSteps, testing::Bool(),
                         [](const auto& info) { return info.param ? "Native" : "Brokered"; });

}  // namespace
}  // namespace baton::crash
