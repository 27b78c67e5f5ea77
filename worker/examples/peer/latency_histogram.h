// A histogram of durations in nanoseconds with a bounded size: buckets grow with the value, so that
// a quantile is at most 1/16 above the truth. Values of 2^40 ns (18 minutes) and more share the
// last bucket; the maximum is exact.
#ifndef WORKER_EXAMPLES_PEER_LATENCY_HISTOGRAM_H_
#define WORKER_EXAMPLES_PEER_LATENCY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace baton::peer {

class LatencyHistogram {
 public:
  void Add(uint64_t nanoseconds) {
    ++buckets_[BucketOf(nanoseconds)];
    ++count_;
    max_ = std::max(max_, nanoseconds);
  }

  void Merge(const LatencyHistogram& other) {
    for (size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    max_ = std::max(max_, other.max_);
  }

  uint64_t count() const { return count_; }
  uint64_t max() const { return max_; }

  // The smallest value that at least `quantile` of all values do not exceed, rounded up to the
  // end of its bucket; 0 when there is none.
  uint64_t Quantile(double quantile) const {
    const uint64_t rank = static_cast<uint64_t>(quantile * static_cast<double>(count_) + 0.999999);
    uint64_t seen = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      seen += buckets_[i];
      if (seen >= rank && seen > 0) return std::min(LastValueOf(i), max_);
    }
    return max_;
  }

 private:
  static constexpr int kSubBits = 4;
  static constexpr int kMaxBits = 40;
  static constexpr size_t kBuckets = size_t{kMaxBits - kSubBits + 1} << kSubBits;

  // Below 2^kSubBits a bucket per value; then 2^kSubBits buckets per power of two.
  static size_t BucketOf(uint64_t value) {
    if (value < (uint64_t{1} << kSubBits)) return value;
    const int shift = std::bit_width(value) - 1 - kSubBits;
    const size_t bucket = (static_cast<size_t>(shift) << kSubBits) + (value >> shift);
    return std::min(bucket, kBuckets - 1);
  }
  static uint64_t LastValueOf(size_t bucket) {
    if (bucket < (size_t{2} << kSubBits)) return bucket;
    const int shift = static_cast<int>(bucket >> kSubBits) - 1;
    const uint64_t mantissa = bucket - (static_cast<size_t>(shift) << kSubBits);
    return ((mantissa + 1) << shift) - 1;
  }

  std::array<uint32_t, kBuckets> buckets_ = {};
  uint64_t count_ = 0;
  uint64_t max_ = 0;
};

}  // namespace baton::peer

#endif  // WORKER_EXAMPLES_PEER_LATENCY_HISTOGRAM_H_
