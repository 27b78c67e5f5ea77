#include "supervisor/driver/engine/worker_wakes.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

class WorkerWakesTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kWorkers = 4;

  void Add(uint32_t slot) {
    int pair[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    ends_[slot].Reset(pair[0]);
    engines_end_[slot] = pair[1];
    wakes_.Add(slot, FileDescriptor(pair[1]));
  }

  void Sleep(uint32_t slot) { arena::StoreRelaxed(arena_.worker(slot).sleeping, 1u); }

  bool WasWoken(uint32_t slot) {
    char byte;
    return recv(ends_[slot].get(), &byte, 1, MSG_DONTWAIT) == 1;
  }

  size_t AwaitSignals() {
    const size_t count = wakes_.ListenForSignals(entries_.data());
    EXPECT_GE(poll(entries_.data(), count, 0), 0);
    wakes_.TakeSignals(entries_.data());
    return count;
  }

  static arena::Shape Shape() {
    arena::Shape shape = driver::testing::TestShape();
    shape.workers = kWorkers;
    return shape;
  }

  arena::Arena arena_ = arena::Arena::Create(Shape(), "kv").value();
  WorkerWakes wakes_{&arena_};
  std::array<FileDescriptor, kWorkers> ends_;
  std::array<int, kWorkers> engines_end_ = {};
  std::array<pollfd, kWorkers> entries_ = {};
};

TEST_F(WorkerWakesTest, shouldWakeWhoSleepsAndHasSomethingNewOnce) {
  for (const uint32_t slot : {0u, 1u, 2u}) Add(slot);
  Sleep(0);
  Sleep(1);
  wakes_.Notify(1);
  wakes_.Notify(2);
  wakes_.WakeNotified();
  EXPECT_FALSE(WasWoken(0));
  EXPECT_TRUE(WasWoken(1));
  EXPECT_FALSE(WasWoken(2));
  EXPECT_EQ(arena_.worker(1).sleeping, 0u);
  Sleep(1);
  wakes_.WakeNotified();
  EXPECT_FALSE(WasWoken(1));
}

TEST_F(WorkerWakesTest, shouldWakeAllWhoeverSleeps) {
  Add(0);
  Add(2);
  wakes_.WakeAll();
  EXPECT_TRUE(WasWoken(0));
  EXPECT_TRUE(WasWoken(2));
}

TEST_F(WorkerWakesTest, shouldListenNoMoreToWhoHasClosedItsEnd) {
  Add(0);
  Add(2);
  EXPECT_EQ(AwaitSignals(), 2u);
  ASSERT_EQ(send(ends_[2].get(), "", 1, MSG_DONTWAIT), 1);
  ends_[0].Reset();
  EXPECT_EQ(AwaitSignals(), 2u);  // takes the one's signal, and the other's end
  EXPECT_EQ(AwaitSignals(), 1u);
  EXPECT_EQ(entries_[0].fd, engines_end_[2]);
  EXPECT_EQ(entries_[0].revents, 0);
}

}  // namespace
}  // namespace baton::driver_process
