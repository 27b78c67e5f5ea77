// The state of the picture, from what the demonstration and its peers report.
#ifndef TESTS_DEMO_LIVE_MODEL_H_
#define TESTS_DEMO_LIVE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/demo/event.h"
#include "tests/demo/live_frame.h"
#include "tests/demo/scenario.h"
#include "tests/demo/timeline.h"

namespace baton::demo {

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

}  // namespace baton::demo

#endif  // TESTS_DEMO_LIVE_MODEL_H_
