// Limits how often something may happen: tokens come at a rate, up to a bucket full of them, and
// each event takes one.
#ifndef LIB_BASE_TOKEN_BUCKET_H_
#define LIB_BASE_TOKEN_BUCKET_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace baton {

// Thread-compatible. Times are monotonic, in nanoseconds.
class TokenBucket {
 public:
  // The bucket is full at first. REQUIRES: per_second > 0.
  TokenBucket(double per_second, double most, uint64_t now_ns)
      : per_second_(per_second), most_(most), tokens_(most), filled_ns_(now_ns) {}

  // Takes a token and returns true, or returns false if there is none.
  bool TryTake(uint64_t now_ns) {
    Fill(now_ns);
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

  bool IsFull(uint64_t now_ns) {
    Fill(now_ns);
    return tokens_ >= most_;
  }

  // Returns the time until there is a token; 0: there is one.
  uint64_t NanosecondsToWait(uint64_t now_ns) {
    Fill(now_ns);
    return tokens_ >= 1 ? 0 : static_cast<uint64_t>(std::ceil((1 - tokens_) / per_second_ * 1e9));
  }

  // Takes tokens even if they are not there yet. The bucket then owes them, at most `most_debt`.
  void Take(double tokens, double most_debt) { tokens_ = std::max(-most_debt, tokens_ - tokens); }

 private:
  void Fill(uint64_t now_ns) {
    // Threads read the clock before they take the owner's lock, so times may come out of order.
    if (now_ns <= filled_ns_) return;
    const double seconds = static_cast<double>(now_ns - filled_ns_) * 1e-9;
    tokens_ = std::min(most_, tokens_ + seconds * per_second_);
    filled_ns_ = now_ns;
  }

  double per_second_;
  double most_;
  double tokens_;  // below 0: owed
  uint64_t filled_ns_;
};

}  // namespace baton

#endif  // LIB_BASE_TOKEN_BUCKET_H_
