// A keeper is killed at each system call of its taking over, and after each of many instructions:
// the next one goes on with the sessions and what was set at run time, and peers notice nothing.
//
// BATON_KEEPER_STEP: every how many of these places a keeper is killed at (81); 1: at each.
// BATON_KEEPER_FIRST: the first of them (1).
#include <sys/syscall.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/status_macros.h"
#include "tests/crash/crash_fixture.h"
#include "tests/crash/traced_keeper.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/binaries.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kInstructions = 1000;
// Entries and exits from its first wait for clients on. Its workers resume their sessions in them.
constexpr uint64_t kWhileServing = 100;
constexpr uint64_t kKeepersOfABaton = 40;
constexpr uint64_t kReportEvery = 200;

class KeeperSteps : public CrashTest, public testing::WithParamInterface<bool> {
 protected:
  static bool IsNative() { return GetParam(); }

  // `advance` runs a keeper to the place of this number, from 1 to `places`.
  using Advance = std::function<absl::Status(TracedKeeper& keeper, uint64_t place)>;
  void KillAtEach(uint64_t places, const Advance& advance) {
    const uint64_t step = Setting("BATON_KEEPER_STEP", 81);
    uint64_t kills = 0;
    for (uint64_t place = Setting("BATON_KEEPER_FIRST", 1); place <= places; place += step) {
      SCOPED_TRACE(absl::StrCat("place ", place));
      if (!keeper_) {
        ASSERT_NO_FATAL_FAILURE(Begin());
      }
      ASSERT_OK(keeper_->KillAndAwaitNext());
      ASSERT_OK(advance(*keeper_, place));
      // One keeper of four is followed by a keeper that serves, the others by one that is killed.
      if (++kills % 4 == 0 || place + step > places) {
        ASSERT_NO_FATAL_FAILURE(LetNextServe());
      }
      if (kills % kKeepersOfABaton == 0 || place + step > places) {
        ASSERT_NO_FATAL_FAILURE(End());
      }
      if (kills % kReportEvery != 0) continue;
      std::printf("%llu keepers were killed\n", Printable(kills));
      std::fflush(stdout);
    }
    std::printf("%llu keepers of %s workers were killed, at one in %llu of %llu places\n",
                Printable(kills), IsNative() ? "native" : "brokered", Printable(step),
                Printable(places));
  }

  void Begin() {
    harness::ClusterOptions options;
    if (IsNative()) {
      options.native_object = harness::Binaries().Find("ledger-v1.so").value();
      options.batond_arguments = {"--native-workers", "2"};
    }
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
    if (IsNative()) {
      ASSERT_OK(cluster_->WaitUntilListening());
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
    ASSERT_NO_FATAL_FAILURE(StartPeer(1000));
    ASSERT_OK(peer_->Settle());
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

  void End() {
    EXPECT_THAT(Baton({"service", "policy", "ledger"}), HasSubstr("connections: 19"));
    if (!IsNative()) {
      // The workers' sessions are of use, too.
      ASSERT_OK(cluster_->Handoff(standby_->id));
      ASSERT_OK(cluster_->Handoff(owner_->id));
      EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
    }
    ASSERT_OK(peer_->Settle());
    ExpectNothingLost();
    ASSERT_FALSE(HasFailure());
    keeper_.reset();
    owner_.reset();
    standby_.reset();
    peer_.reset();
    ASSERT_OK(cluster_->Stop());
    cluster_.reset();
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
  KillAtEach(calls + kWhileServing, [](TracedKeeper& keeper, uint64_t place) {
    for (uint64_t i = 0; i < place; ++i) BATON_RETURN_IF_ERROR(keeper.RunToCall());
    return absl::OkStatus();
  });
}

// From its receipt of the first entry that its predecessor has left.
TEST_P(KeeperSteps, shouldBeFollowedAfterEachInstruction) {
  KillAtEach(kInstructions, [](TracedKeeper& keeper, uint64_t place) -> absl::Status {
    do {
      BATON_RETURN_IF_ERROR(keeper.RunToCall());
    } while (keeper.Received().find("lasting/") == std::string::npos);
    return keeper.Step(place);
  });
}

INSTANTIATE_TEST_SUITE_P(Workers, KeeperSteps, testing::Bool(),
                         [](const auto& info) { return info.param ? "Native" : "Brokered"; });

}  // namespace
}  // namespace baton::crash
