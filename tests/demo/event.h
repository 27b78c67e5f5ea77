// What the demonstration does to the service, what its peers saw of it, and where that is reported
// while it is done.
#ifndef TESTS_DEMO_EVENT_H_
#define TESTS_DEMO_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::demo {

// ---- A peer's timeline: the file that baton-peer writes (worker/examples/peer/timeline.h).

// Since the peer's start.
struct Counters {
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  uint64_t reordered = 0;
  uint64_t corrupt = 0;
  uint64_t wrong_total = 0;
  uint64_t disconnects = 0;
};

struct Bucket {
  static constexpr uint64_t kMicroseconds = 5000;

  uint64_t start_us = 0;  // CLOCK_MONOTONIC
  uint64_t replies = 0;
  uint64_t silence_us = 0;  // the longest that ended in the bucket, or went on at its end
  Counters counters;        // at the bucket's end
};

// Follows the file while the peer writes it.
class TimelineReader {
 public:
  explicit TimelineReader(std::string path) : path_(std::move(path)) {}

  // Returns the buckets that were written since the last call; none as long as there is no file.
  // Skips lines that it cannot parse.
  std::vector<Bucket> Read();

 private:
  std::string path_;
  FileDescriptor file_;
  std::string rest_;  // of a line that is not complete
};

// Returns all of a file whose peer has ended. kNotFound: it has no bucket.
absl::StatusOr<std::vector<Bucket>> ReadTimeline(const std::string& path);

// Returns about `count` buckets in the place of `buckets`: each has the replies of those that it
// stands for, the longest of their silences and the counters of the last. `microseconds` returns
// the length of the result's buckets.
std::vector<Bucket> Thin(const std::vector<Bucket>& buckets, size_t count, uint64_t* microseconds);

enum class EventKind : uint8_t {
  kQuiet,  // nothing is done: what the machine alone makes of the traffic
  kHandoff,
  kUpgradeStart,  // the program starts, beside the one that serves
  kUpgrade,
  kBadUpgrade,
  kCrashHot,
  kHang,
  kCrashCold,
  kControlKill,
  kKeeperKill,
  kBatonUpgrade,
  kBatondKill,
  kPoison,
  // Without Baton.
  kBaseline,      // a kill, and clients connect anew to a warm successor
  kStandbyDrain,  // a planned restart, and clients move to the connections that they have
  kStandbyCrash   // a kill, likewise
};

// How the demonstration names and draws events of one kind.
struct EventLook {
  const char* name;    // in JSON
  const char* title;   // for people
  const char* colour;  // as SVG and CSS write it; readable on white and on black
};
const EventLook& LookOf(EventKind kind);
inline const char* EventKindName(EventKind kind) { return LookOf(kind).name; }
inline const char* EventTitle(EventKind kind) { return LookOf(kind).title; }

struct Event {
  EventKind kind = EventKind::kHandoff;
  uint64_t monotonic_us = 0;  // CLOCK_MONOTONIC, when it was done to the service
  double silence_us = 0;      // longest silence on any connection around it, to the first reply
  std::string problem;        // empty: it ended as it should
};

// Events of one kind, one silence for each.
struct SilenceStatistics {
  size_t count = 0;
  size_t ok = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
};
SilenceStatistics Summarize(const std::vector<Event>& events, EventKind kind);

// The demonstration reports here what it does, while it does it. The calls come from one thread,
// outside of what is measured.
class Progress {
 public:
  virtual ~Progress() = default;

  // A service and its peers start, with Baton or without. `timeline_path` is the file that the peer
  // will write.
  virtual void BeginAct(const std::string& title, bool with_baton,
                        const std::string& timeline_path) = 0;
  // The act's peer has ended and has counted so much.
  virtual void EndAct(const Counters& counters) = 0;
  virtual void Begin(EventKind kind) = 0;
  // `event` of the kind that began has ended.
  virtual void End(const Event& event) = 0;
  // A line for people.
  virtual void Note(const std::string& line) = 0;
  // Others are about to write to standard error.
  virtual void Yield() = 0;
};

// Prints a line for each event to standard error, under a heading for each kind.
std::unique_ptr<Progress> MakePlainProgress();

}  // namespace baton::demo

#endif  // TESTS_DEMO_EVENT_H_
