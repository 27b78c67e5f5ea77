#include "supervisor/driver/engine/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kWorkers = 4;

class RosterTest : public ::testing::Test {
 protected:
  // Ready, with the id 10 + slot, so that a later slot has a newer worker.
  void Add(uint32_t slot, StateVersions versions = {}, Standing standing = Standing::kFirst) {
    int pair[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    ends_[slot].Reset(pair[0]);
    roster_.Add(slot, 10 + slot, FileDescriptor(pair[1]), versions, standing);
    roster_[slot].ready = true;
  }

  void Sleep(uint32_t slot) { arena::StoreRelaxed(arena_.worker(slot).sleeping, 1u); }

  bool WasWoken(uint32_t slot) {
    char byte;
    return recv(ends_[slot].get(), &byte, 1, MSG_DONTWAIT) == 1;
  }

  size_t AwaitSignals() {
    const size_t count = roster_.ListenForSignals(entries_.data());
    EXPECT_GE(poll(entries_.data(), count, 0), 0);
    roster_.TakeSignals(entries_.data());
    return count;
  }

  static arena::Shape Shape() {
    arena::Shape shape = driver::testing::TestShape();
    shape.workers = kWorkers;
    return shape;
  }

  arena::Arena arena_ = arena::Arena::Create(Shape(), "kv").value();
  Roster roster_{&arena_};
  std::array<FileDescriptor, kWorkers> ends_;
  std::array<pollfd, kWorkers> entries_ = {};
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

TEST_F(RosterTest, shouldWakeWhoSleepsAndHasSomethingNewOnce) {
  for (const uint32_t slot : {0u, 1u, 2u}) Add(slot);
  Sleep(0);
  Sleep(1);
  roster_.Notify(1);
  roster_.Notify(2);
  roster_.WakeNotified();
  EXPECT_FALSE(WasWoken(0));
  EXPECT_TRUE(WasWoken(1));
  EXPECT_FALSE(WasWoken(2));
  EXPECT_EQ(arena_.worker(1).sleeping, 0u);
  Sleep(1);
  roster_.WakeNotified();
  EXPECT_FALSE(WasWoken(1));
}

TEST_F(RosterTest, shouldListenNoMoreToWhoHasClosedItsEnd) {
  Add(0);
  Add(2);
  EXPECT_EQ(AwaitSignals(), 2u);
  ASSERT_EQ(send(ends_[2].get(), "", 1, MSG_DONTWAIT), 1);
  ends_[0].Reset();
  EXPECT_EQ(AwaitSignals(), 2u);  // takes the one's signal, and the other's end
  EXPECT_EQ(AwaitSignals(), 1u);
  EXPECT_EQ(entries_[0].fd, roster_[2].wake.get());
  EXPECT_EQ(entries_[0].revents, 0);
}

}  // namespace
}  // namespace baton::driver_process
