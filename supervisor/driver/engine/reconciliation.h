// Reports the outcome of a shard's work requests when the shard changed hands.
#ifndef SUPERVISOR_DRIVER_ENGINE_RECONCILIATION_H_
#define SUPERVISOR_DRIVER_ENGINE_RECONCILIATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"

namespace baton::driver_process {

// The outcome of a work request that was outstanding. Brokered services have none that is
// ambiguous.
using arena::RequestOutcome;
std::string_view RequestOutcomeName(RequestOutcome outcome);

std::string_view CompletionKindName(arena::CompletionKind kind);

// A connection that was failed because owners died on a completion of it.
struct Poisoning {
  uint32_t connection = 0;
  uint32_t generation = 0;
  uint64_t completion = 0;  // index in the shard's completion log
  arena::CompletionKind kind = arena::CompletionKind::kReceive;
  uint64_t sequence = 0;  // of its work request; only for sends and receives
  bool guessed = false;   // the oldest completion: the owners did not name one in common
  uint32_t deaths = 0;
  std::vector<uint64_t> worker_ids;  // the last DeathCount::kRemembered
};
// "connection 3 is failed: 2 workers (7, 8) died on its receive 17, completion 4711 of shard 0"
std::string DescribePoisoning(uint32_t shard, const Poisoning& poisoned);

// Native services have the head and the requests in shared memory, in the same form.
struct ReconciliationReport : arena::ReportHead {
  ReconciliationReport() : ReportHead() {}  // all zeros

  std::string cause;
  bool released = false;  // native services only: the owner itself ended it
  std::vector<arena::ReportedRequest> requests;
  std::optional<Poisoning> poisoned;
};

// Describes an ownership that has ended: what the arena does not say of it any more.
struct EndedOwnership {
  uint64_t epoch = 0;
  uint64_t owner_id = 0;
  uint64_t recovered = 0;  // transactions that were published and applied only at the cut
  std::string_view cause;
  std::optional<Poisoning> poisoned = {};
  // All connections of the shard, and maybe others. None: Reconcile() looks for them.
  std::optional<absl::Span<const uint32_t>> connections = {};
};

// May be called after the successor was woken. The report is as of the cut if the shard's driver
// has done nothing since. A native claimant has posted by then: see ShardReports::CorrectSettled.
ReconciliationReport Reconcile(const arena::Arena& arena, uint32_t shard,
                               const driver::ShardCounters& counters, const EndedOwnership& ended);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_RECONCILIATION_H_
