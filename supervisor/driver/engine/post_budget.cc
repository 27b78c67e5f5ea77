#include "supervisor/driver/engine/post_budget.h"

#include <algorithm>

namespace baton::driver_process {
namespace {

constexpr double kBurstSeconds = 0.1;  // what a full bucket holds
// The longest time that the successor waits for requests that a change of owner posted early.
constexpr double kMostDebtSeconds = 1;

std::optional<TokenBucket> FullBucket(uint32_t rate, uint64_t now_ns) {
  if (rate == 0) return std::nullopt;
  return TokenBucket(rate, std::max(1.0, rate * kBurstSeconds), now_ns);
}

uint64_t Wait(std::optional<TokenBucket>& bucket, uint64_t now_ns) {
  return bucket ? bucket->NanosecondsToWait(now_ns) : 0;
}

void TakeFrom(std::optional<TokenBucket>& bucket, uint32_t rate, size_t requests) {
  if (bucket) bucket->Take(static_cast<double>(requests), std::max(1.0, rate * kMostDebtSeconds));
}

}  // namespace

PostBudget::PostBudget(uint32_t of_service, uint32_t of_worker, uint32_t workers, uint64_t now_ns)
    : of_service_(of_service),
      of_worker_(of_worker),
      service_(FullBucket(of_service, now_ns)),
      workers_(workers, FullBucket(of_worker, now_ns)) {}

uint64_t PostBudget::NanosecondsToWait(uint32_t slot, uint64_t now_ns) {
  return std::max(Wait(service_, now_ns), Wait(workers_[slot], now_ns));
}

void PostBudget::Take(uint32_t slot, size_t requests) {
  TakeFrom(service_, of_service_, requests);
  TakeFrom(workers_[slot], of_worker_, requests);
}

void PostBudget::Refill(uint32_t slot, uint64_t now_ns) {
  workers_[slot] = FullBucket(of_worker_, now_ns);
}

}  // namespace baton::driver_process
