#include "supervisor/keeper/post_budget.h"

#include <algorithm>
#include <cmath>

namespace baton::keeper {
namespace {

constexpr double kSecondNs = 1e9;
constexpr double kBurstSeconds = 0.1;  // what a full bucket holds
// What is posted ahead of its time for a change of owner is not held against the successor for
// longer.
constexpr double kMostDebtSeconds = 1;

double Full(double rate) { return std::max(1.0, rate * kBurstSeconds); }

}  // namespace

PostBudget::PostBudget(uint32_t of_service, uint32_t of_worker, uint32_t workers, uint64_t now_ns)
    : of_service_(of_service),
      of_worker_(of_worker),
      service_{Full(of_service), now_ns},
      workers_(workers, Bucket{Full(of_worker), now_ns}) {}

uint64_t PostBudget::Wait(Bucket& bucket, double rate, uint64_t now_ns) {
  if (rate == 0) return 0;
  const double passed = static_cast<double>(now_ns - bucket.filled_ns) / kSecondNs;
  bucket.tokens = std::min(Full(rate), bucket.tokens + passed * rate);
  bucket.filled_ns = now_ns;
  if (bucket.tokens >= 1) return 0;
  return static_cast<uint64_t>(std::ceil((1 - bucket.tokens) / rate * kSecondNs));
}

void PostBudget::Take(Bucket& bucket, double rate, size_t requests) {
  const double most_debt = -std::max(1.0, rate * kMostDebtSeconds);
  bucket.tokens = std::max(most_debt, bucket.tokens - static_cast<double>(requests));
}

uint64_t PostBudget::NanosecondsToWait(uint32_t slot, uint64_t now_ns) {
  return std::max(Wait(service_, of_service_, now_ns), Wait(workers_[slot], of_worker_, now_ns));
}

void PostBudget::Take(uint32_t slot, size_t requests) {
  Take(service_, of_service_, requests);
  Take(workers_[slot], of_worker_, requests);
}

void PostBudget::Refill(uint32_t slot, uint64_t now_ns) {
  workers_[slot] = {Full(of_worker_), now_ns};
}

}  // namespace baton::keeper
