// A peer's timeline: the file that baton-peer writes (worker/examples/peer/timeline.h).
#ifndef TESTS_DEMO_TIMELINE_H_
#define TESTS_DEMO_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::demo {

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

}  // namespace baton::demo

#endif  // TESTS_DEMO_TIMELINE_H_
