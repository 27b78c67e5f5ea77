// The driver of a brokered service dies in the middle of a change of owner, and another one goes on
// with nothing but the arena.
#include "supervisor/driver/engine/brokered_shards.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/driver/engine/shard_deaths.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::driver_process {
namespace {

using driver::testing::CommitWriter;
using driver::testing::RawPeer;
using driver::testing::TestShape;

struct Died {};
std::string_view dies_at;  // the next time; empty: nowhere

void PassPoint(const char* name) {
  if (dies_at != name) return;
  dies_at = {};
  throw Died();
}

class Listener final : public EngineListener {
 public:
  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override { ++fenced; }
  void OnDeviceLost(const absl::Status&) override {}
  void OnReport(uint32_t shard, const ReconciliationReport& report) override {
    if (shard == 0) reported.push_back(report.epoch);
  }

  int fenced = 0;
  std::vector<uint64_t> reported;  // epochs of shard 0
};

// A worker without a process, which has a slot and writes the banks of its shards.
struct Place {
  uint32_t slot;
  uint64_t id;
  FileDescriptor wake;  // the worker's end
};

class BrokeredShardsTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kShards = 2;

  void Make(bool outside_effects, uint32_t shards = kShards) {
    arena::Shape shape = TestShape(shards);
    shape.workers = 4;
    arena_.emplace(arena::Arena::Create(shape, "kv").value());
    for (uint32_t i = 0; i < shards; ++i) writers_.emplace_back(&*arena_, i);
    EngineOptions options;
    options.outside_effects = outside_effects;
    options.poison_deaths = 1;
    options.outlive = [this](const auto& work, const auto& go_on) {
      try {
        return work();
      } catch (const Died&) {
        ++deaths_;
      }
      before_going_on_();
      go_on();
    };
    engine_ = Engine::Create(&*arena_, device_.get(), &listener_, options).value();
    SetCrashPointHandler(PassPoint);
  }
  void TearDown() override {
    SetCrashPointHandler(nullptr);
    dies_at = {};
  }

  Place Ready(uint32_t slot) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const Place place{slot, 100 + slot, FileDescriptor(pair[0])};
    engine_->AddWorker(slot, place.id, FileDescriptor(pair[1]));
    engine_->succession().SetReady(slot);
    return {slot, place.id, FileDescriptor(fcntl(place.wake.get(), F_DUPFD_CLOEXEC, 0))};
  }
  uint64_t OwnerOf(uint32_t shard) const { return engine_->succession().owner(shard).worker_id; }
  uint64_t EpochOf(uint32_t shard) const { return engine_->succession().owner(shard).epoch; }
  // The owner's first commit.
  void Adopt(uint32_t shard) {
    writers_[shard].Begin(EpochOf(shard));
    writers_[shard].Acknowledge(0).ShardState("state", 1).Publish();
    engine_->Turn();
    ASSERT_EQ(arena_->succession(shard).served_epoch, EpochOf(shard));
  }
  // The owner of both shards hands the second over.
  void ShareShards(const Place& to) {
    for (uint32_t shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(Adopt(shard));
    ASSERT_NO_FATAL_FAILURE(HandOver(1, to));
  }
  void HandOver(uint32_t shard, const Place& to) {
    engine_->succession().Handoff(shard, to.slot, [](const absl::Status&, double) {});
    writers_[shard].Release().Publish();
    engine_->Turn();
    ASSERT_NO_FATAL_FAILURE(Adopt(shard));
    ASSERT_EQ(OwnerOf(shard), to.id);
  }
  void End(const Place& place) { engine_->succession().WorkerEnded(place.slot, place.id, "crash"); }
  void ProveDead(const Place& place) { engine_->succession().WorkerDead(place.slot, place.id); }

  Listener listener_;
  std::unique_ptr<verbs::Device> device_ = verbs::soft::CreateSoftDevice({}).value();
  std::optional<arena::Arena> arena_;
  std::vector<CommitWriter> writers_;  // by shard
  std::unique_ptr<Engine> engine_;
  std::function<void()> before_going_on_ = [] {};
  int deaths_ = 0;  // of the driver
};

// How the owner of both shards ends, and where the driver dies then.
struct EndAndPoint {
  std::string_view cause;  // of the report
  std::string_view point;
};

class ChangeTest : public BrokeredShardsTest, public ::testing::WithParamInterface<EndAndPoint> {};

TEST_P(ChangeTest, shouldBeFinishedByTheDriverThatFollows) {
  Make(/*outside_effects=*/false);
  const Place owner = Ready(0);
  for (uint32_t shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(Adopt(shard));
  const Place heir = Ready(1);
  const std::string_view cause = GetParam().cause;
  dies_at = GetParam().point;
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    // It is published, and applied by whoever ends the ownership.
    writers_[shard].ShardState("the last", 2).Publish();
    if (cause == "release") writers_[shard].Release().Publish();
  }
  if (cause == "fenced") writers_[0].Acknowledge(1000).Publish();
  if (cause == "crash") End(owner);
  engine_->Turn();
  EXPECT_EQ(deaths_, 1);
  if (cause == "fenced") {
    EXPECT_EQ(listener_.fenced, 1);
    for (uint32_t shard = 0; shard < kShards; ++shard) EXPECT_EQ(OwnerOf(shard), 0u);
    ProveDead(owner);
  }
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    ASSERT_EQ(OwnerOf(shard), heir.id);
    EXPECT_EQ(arena_->shard(shard).state_version, 2u);
    EXPECT_EQ(arena_->shard(shard).owner.cut_epoch, 1u);
    const ReconciliationReport& report = engine_->succession().last_report(shard);
    EXPECT_EQ(report.epoch, 1u);
    EXPECT_EQ(report.former_worker_id, owner.id);
    EXPECT_EQ(report.cause, cause);
    ASSERT_NO_FATAL_FAILURE(Adopt(shard));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Points, ChangeTest,
    ::testing::Values(
        EndAndPoint{"crash", "change-begins"}, EndAndPoint{"crash", "change-begun"},
        EndAndPoint{"crash", "change-rest-applied"}, EndAndPoint{"crash", "change-cut"},
        EndAndPoint{"crash", "change-before-vacating"}, EndAndPoint{"crash", "change-ended"},
        EndAndPoint{"crash", "change-epoch-prepared"}, EndAndPoint{"crash", "change-before-giving"},
        EndAndPoint{"crash", "change-given"}, EndAndPoint{"crash", "change-before-report"},
        EndAndPoint{"crash", "change-report-half"}, EndAndPoint{"crash", "change-reported"},
        EndAndPoint{"release", "change-begins"}, EndAndPoint{"release", "change-cut"},
        EndAndPoint{"release", "change-before-vacating"}, EndAndPoint{"release", "change-ended"},
        EndAndPoint{"release", "change-given"}, EndAndPoint{"fenced", "change-fenced"},
        EndAndPoint{"fenced", "change-begins"}, EndAndPoint{"fenced", "change-cut"},
        EndAndPoint{"fenced", "change-ended"}),
    [](const auto& info) {
      std::string name(info.param.cause);
      for (const char c : info.param.point) {
        if (c != '-') name += c;
      }
      return name;
    });

// The driver that follows does, in its own order, what Succession has stored for it: the heir was
// named before it ended.
TEST_F(BrokeredShardsTest, shouldGiveNothingToAnHeirThatHasEnded) {
  Make(/*outside_effects=*/true);
  const Place first = Ready(0), second = Ready(1);
  ASSERT_NO_FATAL_FAILURE(ShareShards(second));
  End(first);
  ASSERT_EQ(OwnerOf(0), 0u);  // it waits for the proof, and `second` is its heir
  before_going_on_ = [&] {
    arena::StoreRelease(arena_->worker_record(first.slot).dead_id, first.id);
  };
  dies_at = "change-begins";
  End(second);
  EXPECT_EQ(deaths_, 1);
  EXPECT_EQ(OwnerOf(0), 0u);
  const Place third = Ready(2);
  EXPECT_EQ(OwnerOf(0), third.id);
}

// The last transaction was applied, and nobody noted that it was the first.
TEST_F(BrokeredShardsTest, shouldNoteAFirstCommitThatTheDeadDriverApplied) {
  Make(/*outside_effects=*/false);
  const Place owner = Ready(0), other = Ready(1);
  ASSERT_NO_FATAL_FAILURE(ShareShards(other));
  const Place heir = Ready(2);
  End(owner);
  ASSERT_EQ(OwnerOf(0), heir.id);
  writers_[0].Begin(EpochOf(0));
  writers_[0].Acknowledge(0).Publish();
  absl::Status error;
  ASSERT_EQ(engine_->driver().ApplyNext(0, &error), driver::CommitOutcome::kApplied);
  dies_at = "change-begins";
  End(other);
  EXPECT_EQ(deaths_, 1);
  EXPECT_EQ(arena_->succession(0).served_epoch, EpochOf(0));
  EXPECT_EQ(engine_->succession().failover_blackout(0).count(), 1u);
}

// The heir has ended, too, before there was another driver.
TEST_F(BrokeredShardsTest, shouldReportTheEndThatTheNextOneFollowed) {
  Make(/*outside_effects=*/false);
  const Place owner = Ready(0);
  for (uint32_t shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(Adopt(shard));
  const Place heir = Ready(1), last = Ready(2);
  before_going_on_ = [&] {
    for (const Place* place : {&heir, &last}) {
      if (OwnerOf(0) != place->id) continue;
      arena::StoreRelease(arena_->worker_record(place->slot).ended_id, place->id);
    }
  };
  dies_at = "change-before-report";
  End(owner);
  EXPECT_EQ(deaths_, 1);
  EXPECT_EQ(listener_.reported, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(engine_->succession().last_report(0).former_worker_id,
            OwnerOf(0) == last.id ? heir.id : last.id);
}

// The connection was failed before the next owner was named.
TEST_F(BrokeredShardsTest, shouldTellOfAPoisoningThatTheDeadDriverBegan) {
  for (const std::string_view point :
       {"change-death-counted", "change-poisoned", "change-given", "change-reported"}) {
    writers_.clear();
    engine_.reset();
    deaths_ = 0;
    Make(/*outside_effects=*/false, /*shards=*/1);
    const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
    const auto address = engine_->Listen({fabric.host, 0});
    ASSERT_TRUE(address.ok()) << address.status();
    const Place owner = Ready(0);
    ASSERT_NO_FATAL_FAILURE(Adopt(0));
    RawPeer peer;
    peer.Connect(address->port);
    ASSERT_TRUE(driver::testing::Pump(
        [&] {
          engine_->Turn();
          peer.Turn();
        },
        [&] { return arena_->shard(0).completion_tail == 1; }));
    const Place heir = Ready(1);
    arena_->bank(0, EpochOf(0)).handling = 1;
    dies_at = point;
    End(owner);
    EXPECT_EQ(deaths_, 1) << point;
    EXPECT_EQ(OwnerOf(0), heir.id);
    ASSERT_TRUE(engine_->succession().last_report(0).poisoned) << point;
    EXPECT_EQ(engine_->succession().last_report(0).poisoned->completion, 0u);
    EXPECT_EQ(engine_->succession().poisoned_connections(0), 1u) << point;
  }
}

// ---- The driver lives.

TEST_F(BrokeredShardsTest, shouldGiveToTheIdleWorkerWhatTheBusyCouldHave) {
  Make(/*outside_effects=*/false, /*shards=*/3);
  const Place first = Ready(0);
  for (uint32_t shard = 0; shard < 3; ++shard) ASSERT_NO_FATAL_FAILURE(Adopt(shard));
  const Place second = Ready(1), newest = Ready(3);
  ASSERT_NO_FATAL_FAILURE(HandOver(1, second));
  ASSERT_NO_FATAL_FAILURE(HandOver(2, newest));
  const Place idle = Ready(2);
  for (uint32_t shard = 0; shard < 3; ++shard) {
    EXPECT_EQ(engine_->succession().owner(shard).heir_id, idle.id) << shard;
  }
}

// Its first commit and its release come in one turn.
TEST_F(BrokeredShardsTest, shouldKnowThatAnOwnerServedWhichHasReleasedSince) {
  Make(/*outside_effects=*/false);
  const Place first = Ready(0), second = Ready(1);
  for (uint32_t shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(Adopt(shard));
  absl::Status moved = absl::UnknownError("not yet");
  engine_->succession().Handoff(0, second.slot,
                                [&](absl::Status status, double) { moved = std::move(status); });
  writers_[0].Release().Publish();
  engine_->Turn();
  ASSERT_EQ(OwnerOf(0), second.id);
  writers_[0].Begin(EpochOf(0));
  writers_[0].Acknowledge(0).Publish();
  writers_[0].Release().Publish();
  engine_->Turn();
  EXPECT_EQ(moved, absl::OkStatus());
  EXPECT_EQ(engine_->succession().handoff_blackout(0).count(), 1u);
  EXPECT_FALSE(engine_->succession().IsReady(second.slot));
  EXPECT_EQ(OwnerOf(0), first.id);
}

// Peers wait from the first owner's end on.
TEST_F(BrokeredShardsTest, shouldMeasureTheBlackoutFromTheEndOfWhoServedLast) {
  Make(/*outside_effects=*/false, /*shards=*/1);
  const Place first = Ready(0), second = Ready(1), third = Ready(2);
  ASSERT_NO_FATAL_FAILURE(Adopt(0));
  End(first);
  const uint64_t begun = arena_->succession(0).change_begun_ns;
  const uint64_t heir = OwnerOf(0);
  writers_[0].Begin(EpochOf(0));
  writers_[0].Release().Publish();  // it could not adopt the shard
  engine_->Turn();
  ASSERT_NE(OwnerOf(0), heir);
  ASSERT_NE(OwnerOf(0), 0u);
  EXPECT_EQ(arena_->succession(0).change_begun_ns, begun);
  ASSERT_NO_FATAL_FAILURE(Adopt(0));
  const Place last = Ready(3);
  ASSERT_NO_FATAL_FAILURE(HandOver(0, last));
  EXPECT_NE(arena_->succession(0).change_begun_ns, begun);
}

// Both owners release in one turn, unasked, and each is the other's heir.
TEST_F(BrokeredShardsTest, shouldGiveNothingToWhoHasJustReleased) {
  Make(/*outside_effects=*/false);
  const Place first = Ready(0), second = Ready(1);
  ASSERT_NO_FATAL_FAILURE(ShareShards(second));
  for (uint32_t shard = 0; shard < kShards; ++shard) writers_[shard].Release().Publish();
  engine_->Turn();
  for (uint32_t shard = 0; shard < kShards; ++shard) EXPECT_NE(OwnerOf(shard), first.id);
  EXPECT_FALSE(engine_->succession().IsReady(first.slot));
}

// A fenced worker's release is not believed.
TEST_F(BrokeredShardsTest, shouldAwaitTheDeathOfAFencedWorkerThatHadReleased) {
  Make(/*outside_effects=*/false);
  const Place owner = Ready(0);
  for (uint32_t shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(Adopt(shard));
  const Place heir = Ready(1);
  writers_[0].Acknowledge(1000).Publish();
  writers_[1].Release().Publish();
  engine_->Turn();
  for (uint32_t shard = 0; shard < kShards; ++shard) EXPECT_EQ(OwnerOf(shard), 0u);
  ProveDead(owner);
  for (uint32_t shard = 0; shard < kShards; ++shard) EXPECT_EQ(OwnerOf(shard), heir.id);
}

TEST_F(BrokeredShardsTest, shouldPardonAWorkerThatInheritsLater) {
  Make(/*outside_effects=*/false);
  const Place owner = Ready(0), heir = Ready(1);
  for (uint32_t shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(Adopt(shard));
  engine_->succession().PardonDeath(heir.slot, heir.id);
  End(owner);
  ASSERT_EQ(OwnerOf(0), heir.id);
  ASSERT_NO_FATAL_FAILURE(Adopt(0));
  ASSERT_NO_FATAL_FAILURE(Adopt(1));
  arena_->shard(0).completion_tail = 1;  // something that it could have died of
  arena_->bank(0, EpochOf(0)).handling = 1;
  End(heir);
  EXPECT_EQ(LoadDeaths(*arena_, 0).deaths, 0u);
  arena_->shard(0).completion_tail = 0;
}

TEST_F(BrokeredShardsTest, shouldWakeASleeperThatMissedItsShard) {
  Make(/*outside_effects=*/false);
  const Place owner = Ready(0), other = Ready(1);
  ASSERT_NO_FATAL_FAILURE(ShareShards(other));
  const Place heir = Ready(2);  // owns none, so it follows
  arena_->worker(heir.slot).sleeping = 1;
  before_going_on_ = [&] { arena_->worker(heir.slot).sleeping = 0; };  // noted, and not woken
  dies_at = "change-given";
  End(owner);
  EXPECT_EQ(deaths_, 1);
  char signal;
  EXPECT_EQ(recv(heir.wake.get(), &signal, 1, MSG_DONTWAIT), 1);
}

}  // namespace
}  // namespace baton::driver_process
