// Measures the silences of one connection: how long at least one request was open and no reply
// came. Times are CLOCK_MONOTONIC in nanoseconds.
#ifndef WORKER_EXAMPLES_PEER_SILENCE_METER_H_
#define WORKER_EXAMPLES_PEER_SILENCE_METER_H_

#include <algorithm>
#include <cstdint>

namespace baton::peer {

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

}  // namespace baton::peer

#endif  // WORKER_EXAMPLES_PEER_SILENCE_METER_H_
