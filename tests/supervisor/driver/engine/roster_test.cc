#include "supervisor/driver/engine/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kWorkers = 4;

class RosterTest : public ::testing::Test {
 protected:
  // Ready, with the id 10 + slot, so that a later slot has a newer worker.
  void Add(uint32_t slot, StateVersions versions = {}, Standing standing = Standing::kFirst) {
    roster_.Add(slot, 10 + slot, versions, standing);
    roster_[slot].ready = true;
  }

  static arena::Shape Shape() {
    arena::Shape shape = driver::testing::TestShape();
    shape.workers = kWorkers;
    return shape;
  }

  arena::Arena arena_ = arena::Arena::Create(Shape(), "kv").value();
  Roster roster_{&arena_};
};

TEST_F(RosterTest, shouldChooseByStandingThenByLoadThenTheNewest) {
  Add(0);
  Add(1);
  Add(2);
  Add(3, {}, Standing::kLast);
  EXPECT_EQ(roster_.Choose({}), 2u);
  roster_[2].shards = 1;
  EXPECT_EQ(roster_.Choose({}), 1u);
  roster_[1].standing = Standing::kLast;
  roster_[0].shards = 2;
  EXPECT_EQ(roster_.Choose({}), 2u);
  roster_[2].standing = Standing::kLast;
  EXPECT_EQ(roster_.Choose({}), 0u);
  roster_[0].standing = Standing::kLast;
  EXPECT_EQ(roster_.Choose({}), 3u);
}

TEST_F(RosterTest, shouldChooseOnlyWhoCanServe) {
  EXPECT_EQ(roster_.Choose({}), arena::kNobody);
  EXPECT_EQ(roster_.WhyNobody({}), "no worker is ready");
  Add(0);
  Add(1);
  Add(2);
  roster_[2].ready = false;
  EXPECT_EQ(roster_.Choose({}), 1u);
  roster_[1].silent = true;
  EXPECT_EQ(roster_.Choose({}), 0u);
  roster_[0].ended = true;
  EXPECT_EQ(roster_.Choose({}), arena::kNobody);
  EXPECT_EQ(roster_.WhyNobody({}), "no worker is ready");
}

TEST_F(RosterTest, shouldChooseOnlyWhoReadsTheShardsState) {
  Add(0, {1, 2, 2});
  Add(1, {3, 4, 4});
  EXPECT_EQ(roster_.Choose({.state_version = 2}), 0u);
  EXPECT_EQ(roster_.Choose({.state_version = 3}), 1u);
  EXPECT_EQ(roster_.Choose({.state_version = 5}), arena::kNobody);
  EXPECT_THAT(roster_.WhyNobody({.state_version = 5}), HasSubstr("state version 5"));
  Add(2);  // declares nothing
  EXPECT_EQ(roster_.Choose({.state_version = 5}), 2u);
}

TEST_F(RosterTest, shouldPreferThePromisedWorkerAndPassOverTheExcepted) {
  Add(0, {}, Standing::kLast);
  Add(1);
  Add(2);
  EXPECT_EQ(roster_.Choose({.promised_id = 10}), 0u);
  EXPECT_EQ(roster_.Choose({.except_slot = 2}), 1u);
  EXPECT_EQ(roster_.Choose({.promised_id = 12, .except_slot = 2}), 1u);
  roster_[0].ended = true;
  EXPECT_EQ(roster_.Choose({.promised_id = 10}), 2u);
}

TEST_F(RosterTest, shouldFindAWorkerOnlyInItsTime) {
  Add(1);
  EXPECT_EQ(roster_.Find(1, 11), &roster_[1]);
  EXPECT_EQ(roster_.Find(1, 12), nullptr);
  EXPECT_EQ(roster_.Find(0, 11), nullptr);
  roster_.Remove(1);
  EXPECT_EQ(roster_.Find(1, 11), nullptr);
}

TEST_F(RosterTest, shouldAskOnlyTheWorkerThatIsThereToStop) {
  Add(0);
  Add(1);
  const uint64_t changes = arena_.header().ownership_changes;
  roster_.AskToStop(1);
  EXPECT_EQ(arena_.header().stop_requested, uint64_t{1} << 1);
  EXPECT_EQ(arena_.header().ownership_changes, changes + 1);
  roster_.Remove(1);
  Add(1);
  EXPECT_EQ(arena_.header().stop_requested, 0u);
}

}  // namespace
}  // namespace baton::driver_process
