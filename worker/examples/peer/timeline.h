// Replies, silences and defects over time, as CSV for a plot: one line per bucket of 5 ms.
#ifndef WORKER_EXAMPLES_PEER_TIMELINE_H_
#define WORKER_EXAMPLES_PEER_TIMELINE_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/examples/peer/reply_checker.h"

namespace baton::peer {

class Timeline {
 public:
  static constexpr uint64_t kBucketNanoseconds = 5'000'000;
  // A reader of the file sees a bucket this long after its end, at the latest.
  static constexpr uint64_t kFlushNanoseconds = 100'000'000;

  // Counts since the start.
  struct Counters {
    Defects defects;
    uint64_t disconnects = 0;
  };

  // Columns: monotonic_us (start of the bucket, CLOCK_MONOTONIC), replies, max_silence_us (longest
  // silence that ended in the bucket, or went on at its end), and, since the start, lost,
  // duplicated, reordered, corrupt, wrong_total, disconnects.
  static absl::StatusOr<std::unique_ptr<Timeline>> Create(const std::string& path, uint64_t now);

  void OnReply(uint64_t silence) {
    ++replies_;
    if (silence > silence_) silence_ = silence;
  }

  bool IsDue(uint64_t now) const { return now >= bucket_ + kBucketNanoseconds; }
  // Ends the buckets before `now`; `ongoing` is the longest silence that goes on.
  void Advance(uint64_t now, uint64_t ongoing, const Counters& counters);

 private:
  struct Close {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  Timeline(FILE* file, uint64_t now) : file_(file), bucket_(now), flushed_(now) {}

  std::unique_ptr<FILE, Close> file_;
  uint64_t bucket_;   // start of the current one
  uint64_t flushed_;  // time of the last flush
  uint64_t replies_ = 0;
  uint64_t silence_ = 0;
};

}  // namespace baton::peer

#endif  // WORKER_EXAMPLES_PEER_TIMELINE_H_
