#ifndef TESTS_BENCH_QUANTILE_H_
#define TESTS_BENCH_QUANTILE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

namespace baton::bench {

// The value that the share `quantile` (0..1) of all does not exceed; none of none. Reorders
// `values`.
template <typename T>
std::optional<T> Quantile(std::vector<T>& values, double quantile) {
  if (values.empty()) return std::nullopt;
  const std::ptrdiff_t rank = std::lround(quantile * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<size_t>(rank)];
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_QUANTILE_H_
