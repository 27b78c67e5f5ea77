// Quantiles by the nearest rank: each is a value that was measured, never one in between.
#ifndef LIB_BASE_QUANTILE_H_
#define LIB_BASE_QUANTILE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace baton {

// Returns the index, in ascending order, of the smallest of `count` values that the share
// `quantile` of them does not exceed. REQUIRES: count > 0, 0 <= quantile <= 1.
inline uint64_t QuantileRank(double quantile, uint64_t count) {
  // A product such as 0.07 * 100 is a little more than the whole number that it stands for.
  constexpr double kRounding = 1e-6;
  const double values = std::ceil(quantile * static_cast<double>(count) - kRounding);
  return std::clamp(static_cast<uint64_t>(std::max(values, 1.0)), uint64_t{1}, count) - 1;
}

// Returns the quantile of `values`, nothing if there are none. Reorders them.
template <typename T>
std::optional<T> Quantile(std::vector<T>& values, double quantile) {
  if (values.empty()) return std::nullopt;
  const auto rank = static_cast<std::ptrdiff_t>(QuantileRank(quantile, values.size()));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<size_t>(rank)];
}

}  // namespace baton

#endif  // LIB_BASE_QUANTILE_H_
