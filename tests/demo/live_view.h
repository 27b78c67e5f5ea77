// The picture that a terminal shows while the demonstration runs: its state, from what the
// demonstration and its peers report, and its text.
#ifndef TESTS_DEMO_LIVE_VIEW_H_
#define TESTS_DEMO_LIVE_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/demo/scenario.h"

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

// Times are CLOCK_MONOTONIC in microseconds. Thread-safety: none.
class LiveModel {
 public:
  LiveModel(const DemoOptions& options, uint64_t now_us);

  void BeginAct(const std::string& title, bool with_baton, uint64_t now_us);
  // Takes the final counts of the act's peer. Its timeline shows nothing that came after the last
  // bucket.
  void SetCounters(const Counters& counters);
  void Begin(EventKind kind, uint64_t now_us);
  void End(const Event& event);
  // Takes what the newest act's peer has seen. Ignores what is older than the act: a former
  // run may have left its file.
  void Add(const std::vector<Bucket>& buckets);
  // Everything has ended.
  void Finish();

  LiveState StateAt(uint64_t now_us) const;

 private:
  void AddBucket(const Bucket& bucket);

  const uint64_t start_us_;
  uint64_t act_us_ = 0;    // when the act began
  bool without_ = false;   // it is one without Baton
  uint64_t event_us_ = 0;  // when the event that happens now began; 0: none does
  Bucket bar_;             // what the next bar shows, so far
  uint32_t bar_buckets_ = 0;
  std::vector<EventKind> kinds_;  // of state_.rows
  std::vector<Event> events_;
  uint64_t disconnects_before_ = 0;  // of acts without Baton that have ended
  LiveState state_;
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

// ---- Shows the demonstration's progress as a picture in a terminal.

// A picture is drawn again and again at one place of a terminal. The cursor is never hidden, and no
// mode of the terminal is changed: nothing has to be restored, whichever way the process ends.
// Thread-safety: none.
class Terminal {
 public:
  // The terminal that `fd` is, if one can show the picture there: at least 60 columns and 10 rows,
  // and TERM is neither missing nor "dumb". `fd` stays open for as long as the result lives.
  static std::optional<Terminal> Open(int fd);

  // The room for a frame now. One row is the cursor's, and one column stays empty: a
  // terminal that has filled the last one erases it with the rest of the line.
  FrameLook look() const;

  // Draws `frame`, whose lines fit look(), over the one before. The cursor is then below it.
  void Draw(const std::string& frame, const FrameLook& look);
  // Leaves the frame where it is: the next one is drawn below what is written until then.
  void Leave() { lines_ = 0; }

 private:
  Terminal(int fd, bool colour, bool unicode) : fd_(fd), colour_(colour), unicode_(unicode) {}

  int fd_;
  bool colour_;
  bool unicode_;
  size_t lines_ = 0;    // of the frame that is there
  size_t columns_ = 0;  // for which it was drawn
};

// Draws from a thread of its own, five times a second, so that no event waits for the terminal. The
// picture stays there when the result is destroyed.
std::unique_ptr<Progress> MakeLiveView(const DemoOptions& options, Terminal terminal);

}  // namespace baton::demo

#endif  // TESTS_DEMO_LIVE_VIEW_H_
