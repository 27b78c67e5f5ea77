// A queue as its owner commits it: written, and read and checked.
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

// kInvalidArgument: whoever wrote it was no target of this version, and which field tells. Chunks
// that it names are not looked at. `max_entries`: of a queue of this service.
absl::StatusOr<SavedQueue> ReadQueue(absl::Span<const uint8_t> bytes, uint32_t version,
                                     uint32_t max_entries);

// The same queue, for ReadQueue. `commands`: by slot, all of them; none: all are idle.
void WriteQueue(const QueueState& state, absl::Span<const PendingCommand> commands,
                std::vector<uint8_t>* bytes);

// Whether the slots of the Asynchronous Event Requests that a controller holds are of its admin
// queue, each for one of them alone.
bool HoldsSlotsOf(const ControllerState& controller, absl::Span<const PendingCommand> admin);

// Whether a pending command comes before another: as they have arrived, while any two are closer
// than half of all numbers. A strict order whatever the numbers are; `any`: one of them.
inline bool ComesBefore(uint32_t order, uint32_t other, uint32_t any) {
  constexpr uint32_t kHalf = uint32_t{1} << 31;
  return order - any + kHalf < other - any + kHalf;
}

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_SAVED_QUEUE_H_
