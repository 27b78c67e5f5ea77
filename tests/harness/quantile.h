// Quantiles by the nearest rank: each is a value that was measured, never one in between.
#ifndef TESTS_HARNESS_QUANTILE_H_
#define TESTS_HARNESS_QUANTILE_H_

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "lib/base/latency_histogram.h"

namespace baton {

// Returns the quantile of `values`, nothing if there are none. Reorders them.
template <typename T>
std::optional<T> Quantile(std::vector<T>& values, double quantile) {
  if (values.empty()) return std::nullopt;
  const auto rank = static_cast<std::ptrdiff_t>(QuantileRank(quantile, values.size()));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<size_t>(rank)];
}

}  // namespace baton

#endif  // TESTS_HARNESS_QUANTILE_H_
