// A bounded histogram of durations: 32 buckets for each power of two, so a quantile is at most
// about 3 % off. Never allocates. Thread-compatible.
#ifndef LIB_BASE_LATENCY_HISTOGRAM_H_
#define LIB_BASE_LATENCY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace baton {

// Returns the index of the quantile among `count` values in ascending order: the first value that
// at least the share `quantile` of them does not exceed. REQUIRES: count > 0, 0 <= quantile <= 1.
inline uint64_t QuantileRank(double quantile, uint64_t count) {
  // A product such as 0.07 * 100 is a little more than the whole number that it stands for.
  constexpr double kRounding = 1e-6;
  const double values = std::ceil(quantile * static_cast<double>(count) - kRounding);
  return std::clamp(static_cast<uint64_t>(std::max(values, 1.0)), uint64_t{1}, count) - 1;
}

class LatencyHistogram {
 public:
  void Record(uint64_t nanoseconds) {
    ++buckets_[Bucket(nanoseconds)];
    ++count_;
    sum_ += nanoseconds;
    max_ = std::max(max_, nanoseconds);
  }

  uint64_t count() const { return count_; }
  uint64_t sum() const { return sum_; }
  uint64_t max() const { return max_; }

  // Returns the quantile by the nearest rank, rounded up to the end of its bucket, but never more
  // than max(); 0 when there are none.
  uint64_t Quantile(double quantile) const {
    if (count_ == 0) return 0;
    const uint64_t rank = QuantileRank(quantile, count_);
    uint64_t seen = 0;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      seen += buckets_[i];
      if (seen > rank) return std::min(UpperEnd(i), max_);
    }
    return max_;
  }

  // Returns how many durations were at most `nanoseconds`. Those in the bucket of `nanoseconds`
  // count as longer, unless it is the bucket's end or at least max().
  uint64_t CountUpTo(uint64_t nanoseconds) const {
    uint64_t seen = 0;
    for (size_t i = 0; i < buckets_.size() && UpperEnd(i) <= nanoseconds; ++i) seen += buckets_[i];
    return max_ <= nanoseconds ? count_ : seen;
  }

  void Merge(const LatencyHistogram& other) {
    for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    max_ = std::max(max_, other.max_);
  }

 private:
  static constexpr uint64_t kSubBits = 5;
  static constexpr uint64_t kSub = uint64_t{1} << kSubBits;
  static constexpr size_t kBuckets = (64 - kSubBits + 1) * kSub;

  static size_t Bucket(uint64_t value) {
    if (value < kSub) return value;
    const int shift = std::bit_width(value) - 1 - static_cast<int>(kSubBits);
    return (static_cast<size_t>(shift) + 1) * kSub + ((value >> shift) - kSub);
  }
  static uint64_t UpperEnd(size_t bucket) {
    if (bucket < kSub) return bucket;
    const size_t shift = bucket / kSub - 1;
    return ((bucket % kSub + kSub + 1) << shift) - 1;
  }

  std::array<uint64_t, kBuckets> buckets_ = {};
  uint64_t count_ = 0;
  uint64_t sum_ = 0;
  uint64_t max_ = 0;
};

}  // namespace baton

#endif  // LIB_BASE_LATENCY_HISTOGRAM_H_
