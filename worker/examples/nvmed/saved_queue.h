// A queue as its owner commits it: writing it, reading and checking it.
#ifndef WORKER_EXAMPLES_NVMED_SAVED_QUEUE_H_
#define WORKER_EXAMPLES_NVMED_SAVED_QUEUE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/examples/nvmed/state.h"

namespace baton::nvmed {

struct SavedQueue {
  QueueState state;
  std::vector<PendingCommand> pending;  // by slot, as many as the queue has entries
};

// kInvalidArgument: no target of this version wrote `bytes`; the message names the field that shows
// it. The chunks that they name are not checked. `max_entries`: of a queue of this service.
absl::StatusOr<SavedQueue> ReadQueue(absl::Span<const uint8_t> bytes, uint32_t version,
                                     uint32_t max_entries);

// Writes a queue for ReadQueue. `commands`: all, by slot; empty: all are idle.
void WriteQueue(const QueueState& state, absl::Span<const PendingCommand> commands,
                std::vector<uint8_t>* bytes);

// Returns whether each Asynchronous Event Request that a controller holds has a slot of the admin
// queue to itself.
bool HoldsSlotsOf(const ControllerState& controller, absl::Span<const PendingCommand> admin);

// Returns whether a pending command comes before another. That is their order of arrival if all
// numbers are closer to each other than half of the number space, and a strict order in any case.
// `any`: one of the numbers.
inline bool ComesBefore(uint32_t order, uint32_t other, uint32_t any) {
  constexpr uint32_t kHalf = uint32_t{1} << 31;
  return order - any + kHalf < other - any + kHalf;
}

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_SAVED_QUEUE_H_
