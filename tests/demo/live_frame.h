// The picture that a terminal shows while the demonstration runs, as text.
#ifndef TESTS_DEMO_LIVE_FRAME_H_
#define TESTS_DEMO_LIVE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/demo/timeline.h"

namespace baton::demo {

// Events of one kind, so far.
struct LiveRow {
  std::string title;
  uint32_t wanted = 0;
  uint32_t done = 0;
  uint32_t failed = 0;  // of those done
  double median_us = 0;
  double longest_us = 0;
};

struct LiveState {
  std::string title;  // what is shown now
  uint32_t connections = 0;
  double seconds = 0;  // since the start
  double rate = 0;     // messages per second
  // Over the last seconds, the oldest first: messages per second, and longest silences.
  std::vector<double> rates;
  std::vector<double> silences_us;
  double bar_seconds = 0.1;  // that each of them stands for
  std::vector<LiveRow> rows;
  size_t current = 0;      // of `rows`; rows.size(): none has begun
  double event_us = 0;     // the longest silence of the event that happens now, so far
  double longest_us = 0;   // of an event with Baton that has ended
  std::string longest_at;  // title of its row
  // With Baton.
  Counters counters;
  // Without Baton, when that is shown.
  bool without = false;
  uint64_t disconnects_without = 0;
  bool ended = false;  // no row is current, and nothing moves any more
};

struct FrameLook {
  size_t columns = 80;
  size_t rows = 24;
  bool colour = false;
  bool unicode = false;
};

// Returns at most look.rows lines, each with a newline and no wider than look.columns. Lists every
// kind of event where there are rows enough for it, otherwise the current one.
std::string RenderFrame(const LiveState& state, const FrameLook& look);

}  // namespace baton::demo

#endif  // TESTS_DEMO_LIVE_FRAME_H_
