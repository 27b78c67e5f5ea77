// How many work requests of a service, and of each of its workers, may be posted: token buckets.
// A transaction may begin as soon as its bucket holds anything, and is taken from it as a whole, so
// that one that is larger than a bucket is not kept for ever; what comes after it waits longer.
//
// Thread-compatible: the engine's thread. Allocates nothing after its construction.
#ifndef SUPERVISOR_KEEPER_POST_BUDGET_H_
#define SUPERVISOR_KEEPER_POST_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton::keeper {

class PostBudget {
 public:
  // Work requests a second; 0: as many as they like. `workers`: slots.
  PostBudget(uint32_t of_service, uint32_t of_worker, uint32_t workers, uint64_t now_ns);

  // Until the worker in `slot` may post; 0: now.
  uint64_t NanosecondsToWait(uint32_t slot, uint64_t now_ns);
  void Take(uint32_t slot, size_t requests);
  // Another worker has the slot.
  void Refill(uint32_t slot, uint64_t now_ns);

 private:
  struct Bucket {
    double tokens = 0;  // below 0: what was posted ahead
    uint64_t filled_ns = 0;
  };

  static uint64_t Wait(Bucket& bucket, double rate, uint64_t now_ns);
  static void Take(Bucket& bucket, double rate, size_t requests);

  const double of_service_;
  const double of_worker_;
  Bucket service_;
  std::vector<Bucket> workers_;  // by slot
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_POST_BUDGET_H_
