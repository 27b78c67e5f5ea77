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
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

using driver::testing::CommitWriter;
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

  int fenced = 0;
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

  void Make(bool outside_effects) {
    arena::Shape shape = TestShape(kShards);
    shape.workers = 4;
    arena_.emplace(arena::Arena::Create(shape, "kv").value());
    for (uint32_t i = 0; i < kShards; ++i) writers_.emplace_back(&*arena_, i);
    EngineOptions options;
    options.outside_effects = outside_effects;
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
    engine_->succession().Handoff(1, to.slot, [](const absl::Status&, double) {});
    writers_[1].Release().Publish();
    engine_->Turn();
    ASSERT_NO_FATAL_FAILURE(Adopt(1));
    ASSERT_EQ(OwnerOf(1), to.id);
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
        EndAndPoint{"crash", "change-reported"}, EndAndPoint{"release", "change-begins"},
        EndAndPoint{"release", "change-cut"}, EndAndPoint{"release", "change-before-vacating"},
        EndAndPoint{"release", "change-ended"}, EndAndPoint{"release", "change-given"},
        EndAndPoint{"fenced", "change-fenced"}, EndAndPoint{"fenced", "change-begins"},
        EndAndPoint{"fenced", "change-cut"}, EndAndPoint{"fenced", "change-ended"}),
    [](const auto& info) {
      std::string name(info.param.cause);
      for (const char c : info.param.point) {
        if (c != '-') name += c;
      }
      return name;
    });

// What Succession stores for it to do is done by the driver that follows, in its order: the heir
// was named before it ended.
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

TEST_F(BrokeredShardsTest, shouldWakeASleeperThatMissedItsShard) {
  Make(/*outside_effects=*/false);
  const Place owner = Ready(0), other = Ready(1);
  ASSERT_NO_FATAL_FAILURE(ShareShards(other));
  const Place heir = Ready(2);  // owns none, so it follows
  arena_->worker(heir.slot).sleeping = 1;
  dies_at = "change-given";
  End(owner);
  EXPECT_EQ(deaths_, 1);
  char signal;
  EXPECT_EQ(recv(heir.wake.get(), &signal, 1, MSG_DONTWAIT), 1);
}

}  // namespace
}  // namespace baton::driver_process
