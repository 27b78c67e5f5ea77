#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/driver/engine/news_queue.h"

namespace baton::driver_process {
namespace {

v1::ReconciliationReport Report(uint64_t epoch, const std::string& cause, uint64_t in_flight = 0) {
  v1::ReconciliationReport report;
  report.set_epoch(epoch);
  report.set_cause(cause);
  report.set_in_flight(in_flight);
  return report;
}

TEST(ShardMovesTest, shouldPutTheReportAndTheBlackoutOfAMoveTogether) {
  ShardMoves moves;
  moves.OnReport(0, Report(1, "handoff"));
  EXPECT_EQ(moves.List(-1)[0].blackout_us(), 0);
  EXPECT_EQ(moves.List(-1)[0].report().successor_worker_id(), 0u);
  moves.OnServed(0, 1, 17, 250'000);
  ASSERT_EQ(moves.List(-1).size(), 1u);
  const v1::ShardMove move = moves.List(-1)[0];
  EXPECT_TRUE(move.planned());
  EXPECT_EQ(move.blackout_us(), 250);
  EXPECT_EQ(move.report().successor_worker_id(), 17u);
}

// Native workers write reports when their successors serve already, and correct them.
TEST(ShardMovesTest, shouldTakeAReportLaterAndAgain) {
  ShardMoves moves;
  moves.OnServed(3, 7, 17, 1'000);
  moves.OnReport(3, Report(7, "crash", 2));
  moves.OnReport(3, Report(7, "crash", 5));
  ASSERT_EQ(moves.List(3).size(), 1u);
  const v1::ShardMove move = moves.List(3)[0];
  EXPECT_FALSE(move.planned());
  EXPECT_EQ(move.report().in_flight(), 5u);
  EXPECT_EQ(move.report().successor_worker_id(), 17u);
  EXPECT_EQ(move.blackout_us(), 1);
}

// Once for each move, whichever of report and first commit is known first.
TEST(ShardMovesTest, shouldCountBlackoutsByCause) {
  ShardMoves moves;
  EXPECT_EQ(moves.blackouts().at("crash").count(), 0u);
  moves.OnReport(0, Report(1, "crash"));
  moves.OnServed(0, 1, 17, 250'000);
  moves.OnReport(0, Report(1, "crash", 5));
  moves.OnServed(1, 1, 17, 1'000);
  moves.OnReport(1, Report(1, "fenced"));
  EXPECT_EQ(moves.blackouts().at("crash").count(), 1u);
  EXPECT_EQ(moves.blackouts().at("crash").max(), 250'000u);
  EXPECT_EQ(moves.blackouts().at("fenced").max(), 1'000u);
  EXPECT_EQ(moves.blackouts().at("handoff").count(), 0u);
}

TEST(ShardMovesTest, shouldListTheNewestFirstAndByShard) {
  ShardMoves moves;
  moves.OnReport(0, Report(1, "crash"));
  moves.OnReport(1, Report(1, "hang"));
  moves.OnReport(0, Report(2, "handoff"));
  const auto all = moves.List(-1);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].report().cause(), "handoff");
  EXPECT_EQ(all[1].report().cause(), "hang");
  const auto first = moves.List(0);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1].report().cause(), "crash");
  EXPECT_TRUE(moves.List(2).empty());
}

TEST(ShardMovesTest, shouldNotTakeMoreOfAForgottenOneForTheNewest) {
  ShardMoves moves;
  for (uint64_t epoch = 1; epoch <= ShardMoves::kHistory + 1; ++epoch) {
    moves.OnReport(0, Report(epoch, "handoff"));
  }
  moves.OnReport(0, Report(1, "crash"));
  EXPECT_EQ(moves.List(-1).front().report().epoch(), ShardMoves::kHistory + 1);
  EXPECT_EQ(moves.List(-1).back().report().epoch(), 2u);
}

TEST(ShardMovesTest, shouldKeepTheLast) {
  ShardMoves moves;
  for (uint64_t epoch = 1; epoch <= ShardMoves::kHistory + 10; ++epoch) {
    moves.OnReport(0, Report(epoch, "handoff"));
  }
  const auto all = moves.List(-1);
  ASSERT_EQ(all.size(), ShardMoves::kHistory);
  EXPECT_EQ(all.back().report().epoch(), 11u);
}

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
