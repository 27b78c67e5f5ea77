#include "supervisor/driver/engine/news_queue.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::driver_process {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

internal::DriverNews Moved(uint64_t move) {
  internal::DriverNews news;
  news.mutable_moved()->set_move(move);
  return news;
}

TEST(NewsQueueTest, shouldWakeOnceForWhatWaits) {
  NewsQueue queue;
  int wakes = 0;
  queue.SetWake([&] { ++wakes; });
  EXPECT_EQ(wakes, 0);
  queue.OnFenced(7);
  queue.OnEvent("kind", "message", 7, 1, 2);
  EXPECT_EQ(wakes, 1);
  const std::vector<internal::DriverNews> taken = queue.Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].fenced().id(), 7u);
  EXPECT_EQ(taken[1].event().kind(), "kind");
  EXPECT_EQ(taken[1].event().shard(), 1);
  EXPECT_THAT(queue.Take(), IsEmpty());
  queue.Push(Moved(1));
  EXPECT_EQ(wakes, 2);
}

// The next keeper's: what was reported while there was none waits for it.
TEST(NewsQueueTest, shouldWakeAtOnceForWhatHasWaited) {
  NewsQueue queue;
  queue.Push(Moved(1));
  int wakes = 0;
  queue.SetWake([&] { ++wakes; });
  EXPECT_EQ(wakes, 1);
}

TEST(NewsQueueTest, shouldCountTheEventsThatComeTooFastAndDropNothingElse) {
  NewsQueue queue;
  for (size_t i = 0; i < NewsQueue::kMaxEvents + 3; ++i) queue.OnEvent("flood", "", 0, -1, -1);
  queue.Push(Moved(1));
  const std::vector<internal::DriverNews> taken = queue.Take();
  ASSERT_EQ(taken.size(), NewsQueue::kMaxEvents + 2);
  EXPECT_EQ(taken[NewsQueue::kMaxEvents].moved().move(), 1u);
  EXPECT_EQ(taken.back().event().kind(), "events_dropped");
  EXPECT_THAT(taken.back().event().message(), HasSubstr("3 events"));
  // There is room again.
  queue.OnEvent("flood", "", 0, -1, -1);
  EXPECT_EQ(queue.Take().size(), 1u);
}

TEST(NewsQueueTest, shouldRememberThatTheDeviceIsLost) {
  NewsQueue queue;
  EXPECT_TRUE(queue.device_lost().ok());
  queue.OnDeviceLost(absl::UnavailableError("gone"));
  EXPECT_EQ(queue.Take().at(0).device_lost().status_message(), "gone");
  EXPECT_EQ(queue.device_lost().message(), "gone");
}

}  // namespace
}  // namespace baton::driver_process
