// A SilenceMeter measures the silences of one connection, and a Timeline writes them to a file.
#ifndef WORKER_EXAMPLES_PEER_TIMELINE_H_
#define WORKER_EXAMPLES_PEER_TIMELINE_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/examples/peer/reply_checker.h"

namespace baton::peer {

// Measures the silences of one connection: how long at least one request was open and no reply
// came. Times are CLOCK_MONOTONIC in nanoseconds.
class SilenceMeter {
 public:
  // A request came due. Silence begins with the first open request, whether or not the connection
  // could take it: a client that waits for its connection waits for its reply.
  void OnRequest(uint64_t now) {
    if (start_ == 0) start_ = now;
  }

  // A reply came and leaves `open` requests; returns the silence that it ended.
  uint64_t OnReply(uint64_t now, uint32_t open) {
    const uint64_t silence = Ongoing(now);
    longest_ = std::max(longest_, silence);
    start_ = open > 0 ? now : 0;
    return silence;
  }

  // No reply will come any more.
  void OnEnd(uint64_t now) {
    longest_ = std::max(longest_, Ongoing(now));
    start_ = 0;
  }

  uint64_t Ongoing(uint64_t now) const { return start_ == 0 || now < start_ ? 0 : now - start_; }

  // Returns the longest silence of the current window. An ongoing silence counts in full, in this
  // window and in the next, whenever it began.
  uint64_t Longest(uint64_t now) const { return std::max(longest_, Ongoing(now)); }
  void BeginWindow() { longest_ = 0; }

 private:
  uint64_t start_ = 0;  // 0: nothing is open
  uint64_t longest_ = 0;
};

// Replies, silences and defects over time, as CSV for a plot: one line per bucket of 5 ms.
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
