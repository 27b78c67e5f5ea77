// The picture in the terminal.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/demo/live_view.h"

namespace baton::demo {
namespace {

constexpr uint64_t kStart = 1'000'000'000;

// A second of traffic in which a kill is answered after 12 ms.
LiveModel Shown() {
  DemoOptions options;
  options.handoffs = 2;
  options.upgrades = options.bad_upgrades = options.hangs = options.cold_crashes = 0;
  options.driver_kills = options.control_kills = options.keeper_kills = options.baton_upgrades =
      options.batond_kills = options.poisons = 0;
  options.crashes = 20;
  LiveModel model(options, kStart);
  model.BeginAct("With Baton, brokered workers", /*with_baton=*/true, kStart);
  model.Begin(EventKind::kHandoff, kStart);
  model.End({EventKind::kHandoff, kStart, 400, ""});
  model.Begin(EventKind::kHandoff, kStart);
  model.End({EventKind::kHandoff, kStart, 900, "2 disconnects"});
  model.Begin(EventKind::kCrashHot, kStart + 500'000);
  std::vector<Bucket> buckets;
  for (uint64_t i = 0; i < 200; ++i) {
    buckets.push_back({kStart + i * Bucket::kMicroseconds,
                       20 + i / 20,
                       i == 150 ? 12'000u : 300u,
                       {.reordered = i / 100, .disconnects = 2}});
  }
  model.Add(buckets);
  return model;
}

std::vector<std::string> LinesOf(const std::string& frame) {
  std::vector<std::string> lines = absl::StrSplit(frame, '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

size_t Characters(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

TEST(LiveFrameTest, ListsEveryEventWhereItFits) {
  EXPECT_EQ(RenderFrame(Shown().StateAt(kStart + 61'000'000), {.columns = 80, .rows = 24}),
            R"(With Baton, brokered workers                                64 connections  1:01
messages  +++****###                                         4,900/s
silence   .......=..                                         0.3 ms now
          the last 5 s; silence: 0.1 ms to 1 s
  longest silence of a peer                done  median ms longest ms
  planned handoff to a standby          2 of  2       0.40       0.90  1 failed
> process killed, standby ready         0 of 20
  without: killed, clients reconnect    0 of 10
  without: restart, two connections     0 of 10
  without: killed, two connections      0 of 10
silence so far: this event 12.0 ms, longest 0.9 ms, planned handoff to a standby
lost 0  duplicated 0  reordered 1  disconnects 2
)");
}

TEST(LiveFrameTest, ShowsTheCurrentEventWhereThereIsLittleRoom) {
  EXPECT_EQ(RenderFrame(Shown().StateAt(kStart + 61'000'000),
                        {.columns = 60, .rows = 10, .unicode = true}),
            R"(With Baton, brokered workers            64 connections  1:01
messages  ▆▆▆▇▇▇▇███                     4,900/s
silence   ▂▂▂▂▂▂▂▅▂▂                     0.3 ms now
> process killed, standby ready: 0 of 20 done
  no silence yet
  2 of 52 events done, 1 failed
silence so far: this event 12.0 ms, longest 0.9 ms, planned
lost 0  duplicated 0  reordered 1  disconnects 2
)");
}

TEST(LiveFrameTest, FitsIntoEveryTerminal) {
  LiveState state = Shown().StateAt(kStart);
  state.counters.corrupt = 1;
  state.without = true;
  for (size_t columns : {1, 2, 30, 59, 60, 79, 80, 200}) {
    for (size_t rows : {1, 5, 9, 10, 23, 24, 50}) {
      for (const bool unicode : {false, true}) {
        const auto lines =
            LinesOf(RenderFrame(state, {.columns = columns, .rows = rows, .unicode = unicode}));
        EXPECT_LE(lines.size(), rows);
        for (const std::string& line : lines) EXPECT_LE(Characters(line), columns) << line;
      }
    }
  }
}

TEST(LiveFrameTest, ColoursOnlyWhereItMay) {
  const LiveState state = Shown().StateAt(kStart);
  EXPECT_EQ(RenderFrame(state, {}).find('\x1b'), std::string::npos);
  // The counters are red: there is a disconnect.
  EXPECT_NE(RenderFrame(state, {.colour = true}).find("\x1b[31mlost 0"), std::string::npos);
}

TEST(LiveModelTest, IgnoresWhatAFormerRunLeft) {
  LiveModel model({}, kStart);
  model.BeginAct("With Baton", /*with_baton=*/true, kStart);
  model.Add({{.start_us = kStart - 60'000'000, .replies = 1, .counters = {.lost = 9}}});
  EXPECT_EQ(model.StateAt(kStart).counters.lost, 0u);
  model.Add({{.start_us = kStart + 10, .replies = 1, .counters = {.lost = 1}}});
  EXPECT_EQ(model.StateAt(kStart).counters.lost, 1u);
}

TEST(LiveModelTest, CountsDisconnectsWithoutBatonApart) {
  LiveModel model = Shown();
  for (const uint64_t disconnects : {64, 5}) {
    model.BeginAct("Without Baton", /*with_baton=*/false, kStart);
    model.Add({{.start_us = kStart, .replies = 1, .counters = {.disconnects = disconnects}}});
  }
  model.SetCounters({.lost = 3, .disconnects = 7});
  model.Finish();
  const LiveState state = model.StateAt(kStart);
  EXPECT_EQ(state.counters.disconnects, 2u);
  EXPECT_EQ(state.disconnects_without, 71u);
  EXPECT_EQ(state.current, state.rows.size());
}

// The silence of the event that happens is not yet one of its kind: the peers' answer decides.
TEST(LiveModelTest, ShowsTheSilenceOfTheEventThatHappens) {
  LiveModel model = Shown();
  LiveState state = model.StateAt(kStart);
  EXPECT_EQ(state.event_us, 12'000);
  EXPECT_EQ(state.longest_us, 900);
  EXPECT_EQ(state.rows[1].done, 0u);
  model.End({EventKind::kCrashHot, kStart, 12'345, ""});
  state = model.StateAt(kStart);
  EXPECT_EQ(state.event_us, 0);
  EXPECT_EQ(state.longest_us, 12'345);
  EXPECT_EQ(state.longest_at, state.rows[1].title);
}

}  // namespace
}  // namespace baton::demo
