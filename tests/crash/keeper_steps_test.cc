// A keeper is killed at each system call of its taking over, and after each of many instructions:
// the next one goes on with the sessions and what was set at run time, and peers notice nothing.
//
// BATON_KEEPER_STEP: every how many of these places a keeper is killed at (121); 1: at each.
// BATON_KEEPER_FIRST: the first of them (1).
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/status.h"
#include "tests/crash/steps_fixture.h"
#include "tests/crash/traced_process.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {

// A keeper that runs to a chosen system call or instruction of its taking over, by ptrace.
// Thread-compatible: the kernel takes orders from the thread that has called ReplaceBy alone.
class TracedKeeper {
 public:
  // `driver`: the process that starts keepers, which it does with its main thread. `keeper`: the
  // one that it has.
  TracedKeeper(pid_t driver, pid_t keeper) : driver_(driver), keeper_(keeper) {}
  ~TracedKeeper();
  TracedKeeper(const TracedKeeper&) = delete;
  TracedKeeper& operator=(const TracedKeeper&) = delete;

  // Kills the present keeper with SIGKILL. The next one has executed no instruction of its program.
  absl::Status KillAndAwaitNext();

  // These need a keeper that KillAndAwaitNext has stopped.
  absl::Status RunToCall() const { return crash::RunToCall(keeper_); }
  absl::Status Step(uint64_t instructions) const { return crash::Step(keeper_, instructions); }
  // Lets it run by itself from now on.
  void LetGo();

  // At an entry or exit: the number of the system call.
  long call() const;
  // At the exit from recvmsg: what it has received, its first part.
  std::string Received() const;

 private:
  absl::Status Kill();
  absl::Status AwaitFork();  // of the driver, which stays stopped
  absl::StatusOr<bool> RunToProgram();

  const pid_t driver_;
  pid_t keeper_;
  bool stopped_ = false;  // the keeper, which is traced
};

namespace {

constexpr size_t kReceivedBytes = 256;

using ::testing::HasSubstr;

constexpr uint64_t kInstructions = 1000;
// Entries and exits from its first wait for clients on. Its workers resume their sessions in them.
constexpr uint64_t kWhileServing = 100;
constexpr uint64_t kKeepersOfABaton = 40;

class KeeperSteps : public StepsTest {
 protected:
  // `advance` runs a keeper to the place of this number, from 1 to `places`.
  using Advance = std::function<absl::Status(TracedKeeper& keeper, uint64_t place)>;
  void KillKeepers(uint64_t places, const Advance& advance) {
    const Plan plan = {"keepers", harness::Setting("BATON_KEEPER_STEP", 121),
                       harness::Setting("BATON_KEEPER_FIRST", 1), kKeepersOfABaton};
    KillAtEach(plan, places, [&](uint64_t place, uint64_t nth, bool last) {
      ASSERT_OK(keeper_->KillAndAwaitNext());
      ASSERT_OK(advance(*keeper_, place));
      // One keeper of two is followed by a keeper that serves, the other by one that is killed. If
      // three died in a row of the same entry or request, that would pay for it.
      if (nth % 2 == 0 || last) ASSERT_NO_FATAL_FAILURE(LetNextServe());
    });
  }

  void Begin() override {
    ASSERT_NO_FATAL_FAILURE(StartBaton());
    if (IsNative()) {
      ASSERT_OK(harness::WaitUntil("two workers", [this] {
        const auto service = cluster_->GetService();
        return service.ok() && service->workers_size() == 2 &&
               service->workers(0).state() == v1::WORKER_STATE_READY &&
               service->workers(1).state() == v1::WORKER_STATE_READY;
      }));
    } else {
      ASSERT_NO_FATAL_FAILURE(StartWorker(1, &owner_));
      ASSERT_NO_FATAL_FAILURE(StartWorker(2, &standby_));
    }
    ASSERT_NO_FATAL_FAILURE(StartLoad());
    ASSERT_EQ(harness::SetPolicy(*cluster_, "service { connections: 19 }").status, 0);
    const auto description = cluster_->keeper().Describe();
    ASSERT_OK(description);
    before_ = WhoServes(*description);
    keeper_.emplace(description->service().driver_pid(), description->service().keeper_pid());
  }

  // Until the next keeper serves with the same workers, of which one owns all shards as before.
  void LetNextServe() {
    ASSERT_OK(keeper_->KillAndAwaitNext());
    keeper_->LetGo();
    std::string now;
    harness::WaitUntil("the next keeper to serve", [&] {
      const auto description = cluster_->keeper().Describe();
      now = description.ok() ? WhoServes(*description) : description.status().ToString();
      return now == before_;
    }).IgnoreError();
    ASSERT_EQ(now, before_);
    auto newcomer = cluster_->StartPeer(harness::PeerOptions());
    ASSERT_OK(newcomer);
    harness::ExpectNothingLost(**newcomer);
  }

  void End() override {
    EXPECT_THAT(Baton({"service", "policy", "ledger"}), HasSubstr("connections: 19"));
    if (!IsNative()) {
      // The workers' sessions are of use, too.
      ASSERT_OK(cluster_->Handoff(standby_->id));
      ASSERT_OK(cluster_->Handoff(owner_->id));
      EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectNothingLostUntilNow());
    keeper_.reset();
    owner_.reset();
    standby_.reset();
    ASSERT_NO_FATAL_FAILURE(StopBaton());
  }

  // How many entries and exits there are before a keeper first waits for clients.
  void CountCalls(uint64_t* count) {
    ASSERT_NO_FATAL_FAILURE(Begin());
    ASSERT_OK(keeper_->KillAndAwaitNext());
    do {
      ASSERT_OK(keeper_->RunToCall());
      ++*count;
    } while (keeper_->call() != SYS_epoll_wait);
    ASSERT_NO_FATAL_FAILURE(LetNextServe());
    ASSERT_NO_FATAL_FAILURE(End());
  }

 private:
  static std::string WhoServes(const internal::Description& description) {
    std::string text;
    for (const v1::Worker& worker : description.workers()) {
      absl::StrAppend(&text, "worker ", worker.id(), " pid ", worker.pid(), " ",
                      v1::WorkerState_Name(worker.state()), "; ");
    }
    for (const v1::Shard& shard : description.shards()) {
      absl::StrAppend(&text, "shard ", shard.index(), " of ", shard.owner_worker_id(), "; ");
    }
    return text;
  }

  std::string Baton(const std::vector<std::string>& arguments) {
    const harness::CommandResult result = harness::RunBaton(*cluster_, arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    return result.out;
  }

  std::unique_ptr<harness::LedgerWorker> owner_, standby_;
  std::string before_;
  std::optional<TracedKeeper> keeper_;
};

TEST_P(KeeperSteps, shouldBeFollowedWhereverItsTakingOverEnds) {
  uint64_t calls = 0;
  ASSERT_NO_FATAL_FAILURE(CountCalls(&calls));
  KillKeepers(calls + kWhileServing, [](TracedKeeper& keeper, uint64_t place) {
    for (uint64_t i = 0; i < place; ++i) BATON_RETURN_IF_ERROR(keeper.RunToCall());
    return absl::OkStatus();
  });
}

// From its receipt of the first entry that its predecessor has left.
TEST_P(KeeperSteps, shouldBeFollowedAfterEachInstruction) {
  KillKeepers(kInstructions, [](TracedKeeper& keeper, uint64_t place) -> absl::Status {
    do {
      BATON_RETURN_IF_ERROR(keeper.RunToCall());
    } while (keeper.Received().find("lasting/") == std::string::npos);
    return keeper.Step(place);
  });
}

INSTANTIATE_TEST_SUITE_P(Workers, KeeperSteps, testing::Bool(),
                         [](const auto& info) { return info.param ? "Native" : "Brokered"; });

}  // namespace

TracedKeeper::~TracedKeeper() { LetGo(); }

absl::Status TracedKeeper::KillAndAwaitNext() {
  // Before the keeper's end, after which the driver soon starts the next. The keeper inherits it.
  BATON_RETURN_IF_ERROR(Trace(PTRACE_SEIZE, driver_, PTRACE_O_TRACEFORK));
  BATON_RETURN_IF_ERROR(Kill());
  for (;;) {
    BATON_RETURN_IF_ERROR(AwaitFork());
    BATON_ASSIGN_OR_RETURN(stopped_, RunToProgram());
    if (stopped_) return Trace(PTRACE_DETACH, driver_, 0);
    BATON_RETURN_IF_ERROR(Trace(PTRACE_CONT, driver_, 0));
  }
}

// The driver may fork a twin of its own first, which becomes no program: it sleeps, or is killed
// when another one replaces it. Returns false for one.
absl::StatusOr<bool> TracedKeeper::RunToProgram() {
  int status = 0;
  BATON_RETURN_IF_ERROR(AwaitStop(keeper_, &status));
  BATON_RETURN_IF_ERROR(Trace(PTRACE_SETOPTIONS, keeper_,
                              PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
  bool is_twin = false;
  while (WIFSTOPPED(status) && !IsEvent(status, PTRACE_EVENT_EXEC)) {
    if (is_twin) {
      BATON_RETURN_IF_ERROR(Trace(PTRACE_DETACH, keeper_, SignalIn(status)));
      return false;
    }
    BATON_RETURN_IF_ERROR(Trace(PTRACE_CONT, keeper_, SignalIn(status)));
    BATON_RETURN_IF_ERROR(harness::WaitUntil("a keeper's program, or a twin", [&] {
      is_twin = harness::StatusOf(keeper_, "Name") == "baton-twin";
      return is_twin || waitpid(keeper_, &status, __WALL | WNOHANG) == keeper_;
    }));
    if (!is_twin) continue;
    (void)Trace(PTRACE_INTERRUPT, keeper_, 0);  // fails if it has ended
    BATON_RETURN_IF_ERROR(AwaitStop(keeper_, &status));
  }
  return WIFSTOPPED(status);
}

absl::Status TracedKeeper::Kill() {
  if (kill(keeper_, SIGKILL) != 0) return ErrnoStatus(errno, "kill");
  // The driver reaps a traced process after its tracer.
  int status = 0;
  if (std::exchange(stopped_, false)) return AwaitStop(keeper_, &status);
  return absl::OkStatus();
}

absl::Status TracedKeeper::AwaitFork() {
  for (;;) {
    int status = 0;
    BATON_RETURN_IF_ERROR(AwaitStop(driver_, &status));
    if (!WIFSTOPPED(status)) return absl::InternalError("the driver has ended");
    if (IsEvent(status, PTRACE_EVENT_FORK)) {
      unsigned long child = 0;
      BATON_RETURN_IF_ERROR(
          Trace(PTRACE_GETEVENTMSG, driver_, reinterpret_cast<uintptr_t>(&child)));
      keeper_ = static_cast<pid_t>(child);
      return absl::OkStatus();
    }
    BATON_RETURN_IF_ERROR(Trace(PTRACE_CONT, driver_, SignalIn(status)));
  }
}

void TracedKeeper::LetGo() {
  if (std::exchange(stopped_, false)) Trace(PTRACE_DETACH, keeper_, 0).IgnoreError();
}

long TracedKeeper::call() const { return static_cast<long>(RegistersOf(keeper_).orig_rax); }

std::string TracedKeeper::Received() const {
  const user_regs_struct registers = RegistersOf(keeper_);
  const auto got = static_cast<long>(registers.rax);
  msghdr header = {};
  iovec part = {};
  if (registers.orig_rax != SYS_recvmsg || got <= 0 ||
      !ReadFrom(keeper_, registers.rsi, &header, sizeof(header)) ||
      !ReadFrom(keeper_, reinterpret_cast<uintptr_t>(header.msg_iov), &part, sizeof(part))) {
    return "";
  }
  std::string received(std::min<size_t>({static_cast<size_t>(got), part.iov_len, kReceivedBytes}),
                       '\0');
  if (!ReadFrom(keeper_, reinterpret_cast<uintptr_t>(part.iov_base), received.data(),
                received.size())) {
    return "";
  }
  return received;
}

}  // namespace baton::crash
