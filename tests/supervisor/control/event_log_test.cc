#include "supervisor/control/event_log.h"

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

v1::Event Event(uint64_t sequence, int64_t time) {
  v1::Event event;
  event.set_sequence(sequence);
  event.set_unix_micros(time);
  return event;
}

v1::Event ChangeEvent(uint64_t sequence, int64_t time) {
  v1::Event event = Event(sequence, time);
  event.mutable_change();
  return event;
}

std::vector<uint64_t> Drain(EventFollower& follower) {
  std::vector<uint64_t> sequences;
  while (SharedEvent event = follower.Pop()) sequences.push_back(event->sequence());
  return sequences;
}

// It follows a log of so many events, which the services have told in turn.
int64_t NanosecondsToFollow(int services, int events) {
  EventLog log;
  for (int i = 0; i < events; ++i) {
    log.Append("service" + std::to_string(i % services), Event(static_cast<uint64_t>(i), i));
  }
  // The processor's time for this thread: what else the machine does is not counted.
  const auto spent = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 3; ++i) {
    const int64_t before = spent();
    const auto follower = log.Follow({}, [] {});
    least = std::min(least, spent() - before);
    EXPECT_EQ(Drain(*follower).size(), static_cast<size_t>(events));
  }
  return least;
}

TEST(EventLog, TellsWhatIsLoggedThenWhatComes) {
  EventLog log;
  log.Append("kv", Event(1, 10));
  log.Append("nvme", Event(1, 5));
  int woken = 0;
  auto follower = log.Follow({"kv"}, [&] { ++woken; });
  log.Append("kv", Event(2, 20));
  log.Append("nvme", Event(2, 20));
  EXPECT_EQ(Drain(*follower), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(woken, 1);
}

TEST(EventLog, OrdersServicesByTime) {
  EventLog log;
  log.Append("a", Event(1, 30));
  log.Append("b", Event(2, 10));
  log.Append("b", Event(3, 40));
  EXPECT_EQ(Drain(*log.Follow({}, [] {})), (std::vector<uint64_t>{2, 1, 3}));
}

TEST(EventLog, shouldKeepTheOrderOfEachServiceBetweenThoseOfOthers) {
  EventLog log;
  log.Append("a", Event(1, 10));
  log.Append("a", Event(2, 40));
  log.Append("a", Event(3, 40));
  log.Append("a", ChangeEvent(4, 40));
  log.Append("b", Event(5, 20));
  log.Append("b", Event(6, 40));
  // Its clock is stepped back.
  log.Append("c", Event(7, 30));
  log.Append("c", Event(8, 5));
  log.Append("c", Event(9, 50));
  EXPECT_EQ(Drain(*log.Follow({}, [] {})), (std::vector<uint64_t>{1, 5, 7, 8, 2, 3, 4, 6, 9}));
  EXPECT_EQ(Drain(*log.Follow({"a"}, [] {})), (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(Drain(*log.Follow({"", true}, [] {})), (std::vector<uint64_t>{4}));
}

TEST(EventLog, shouldNotCopyAllEventsForEachService) {
  constexpr int kEvents = 40'000;
  // Copying what is merged for each service would be a hundred times as many copies.
  EXPECT_LT(NanosecondsToFollow(1000, kEvents), 20 * NanosecondsToFollow(10, kEvents));
}

TEST(EventLog, KnowsAnEventAgain) {
  EventLog log;
  log.Append("kv", Event(1, 10));
  log.Append("kv", Event(2, 20));
  // A keeper that is reached again tells all once more; one that starts anew numbers from 1.
  log.Append("kv", Event(1, 10));
  log.Append("kv", Event(2, 20));
  log.Append("kv", Event(1, 30));
  EXPECT_EQ(Drain(*log.Follow({"kv"}, [] {})), (std::vector<uint64_t>{1, 2, 1}));
}

// A control that starts hears of both at any time.
TEST(EventLog, shouldOrderWhatBatondAndTheKeeperOfAServiceReport) {
  EventLog log;
  v1::Event of_batond = Event(1, 15);
  of_batond.set_service("kv");
  log.Append("kv", Event(1, 10));
  log.Append("kv", Event(2, 20));
  EXPECT_TRUE(log.AppendOfBatond(of_batond));
  EXPECT_FALSE(log.AppendOfBatond(of_batond));
  log.AppendOfBatond(Event(7, 12));  // about no service
  EXPECT_EQ(Drain(*log.Follow({"kv"}, [] {})), (std::vector<uint64_t>{1, 1, 2}));
  EXPECT_EQ(Drain(*log.Follow({}, [] {})), (std::vector<uint64_t>{1, 7, 1, 2}));
  EXPECT_TRUE(Drain(*log.Follow({"", /*changes=*/true}, [] {})).empty());
}

TEST(EventLog, KeepsTheLast) {
  EventLog log(/*events_per_service=*/3);
  for (uint64_t i = 1; i <= 10; ++i) log.Append("kv", Event(i, 0));
  EXPECT_EQ(Drain(*log.Follow({"kv"}, [] {})), (std::vector<uint64_t>{8, 9, 10}));
}

TEST(EventLog, CutsOffAFollowerThatDoesNotRead) {
  EventLog log(/*events_per_service=*/100, /*follower_limit=*/2);
  log.Append("kv", Event(1, 0));
  auto slow = log.Follow({"kv"}, [] {});
  for (uint64_t i = 2; i <= 10; ++i) log.Append("kv", Event(i, 0));
  EXPECT_TRUE(slow->overflowed());
  EXPECT_EQ(Drain(*slow), (std::vector<uint64_t>{1, 2, 3}));  // no gap before the end
}

}  // namespace
}  // namespace baton
