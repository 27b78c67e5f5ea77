// Bounds how many work requests of a service, and of each of its workers, are posted in a second. A
// transaction is posted as soon as its buckets hold a token. All its work requests are then taken
// from the buckets. If it is larger than a bucket, it leaves a debt, and the next one waits longer.
//
// Thread-compatible: the engine's thread. Allocates nothing after its construction.
#ifndef SUPERVISOR_DRIVER_ENGINE_POST_BUDGET_H_
#define SUPERVISOR_DRIVER_ENGINE_POST_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/token_bucket.h"

namespace baton::driver_process {

class PostBudget {
 public:
  // Work requests a second; 0: no limit. `workers`: slots.
  PostBudget(uint32_t of_service, uint32_t of_worker, uint32_t workers, uint64_t now_ns);

  // Returns how long the worker in `slot` has to wait before it may post; 0: not at all.
  uint64_t NanosecondsToWait(uint32_t slot, uint64_t now_ns);
  void Take(uint32_t slot, size_t requests);
  // Gives a full bucket to the new worker of the slot.
  void Refill(uint32_t slot, uint64_t now_ns);

 private:
  const uint32_t of_service_;
  const uint32_t of_worker_;
  std::optional<TokenBucket> service_;               // none: no bound
  std::vector<std::optional<TokenBucket>> workers_;  // by slot
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_POST_BUDGET_H_
