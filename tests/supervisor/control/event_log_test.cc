#include "supervisor/control/event_log.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

v1::Event Event(uint64_t sequence, int64_t time) {
  v1::Event event;
  event.set_sequence(sequence);
  event.set_unix_micros(time);
  return event;
}

std::vector<uint64_t> Drain(EventFollower& follower) {
  std::vector<uint64_t> sequences;
  while (SharedEvent event = follower.Pop()) sequences.push_back(event->sequence());
  return sequences;
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
