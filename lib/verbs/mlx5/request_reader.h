#ifndef LIB_VERBS_MLX5_REQUEST_READER_H_
#define LIB_VERBS_MLX5_REQUEST_READER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/mlx5/seen_slots.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

// A send as a device finds it, without its buffers.
struct FoundRequest {
  Opcode opcode = Opcode::kSend;
  bool fence = false;
  bool solicited = false;
  bool signalled = false;
  bool inline_data = false;
  uint32_t immediate = 0;  // host order; or the rkey to invalidate
  uint32_t rkey = 0;
  uint64_t remote_address = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t slots = 0;         // that the request takes
  uint32_t sge_count = 0;     // of `sges`
  uint32_t inline_bytes = 0;  // of `bytes`
};

// A copy of a send that a device finds in a queue, so that later writes of the client change
// nothing. Only the first sge_count elements of `sges` and the first inline_bytes of `bytes` are
// valid.
struct FoundSend : FoundRequest {
  std::array<ScatterGather, kMaxSegments> sges;
  std::array<uint8_t, kMaxSegments * kSegmentBytes> bytes;
};

// A client's send queue as its device sees it.
struct FoundSendQueue {
  const uint8_t* slots = nullptr;
  uint32_t slot_count = 0;
  uint32_t qp_number = 0;
};

// A client's receive queue as its device sees it.
struct FoundReceiveQueue {
  const uint8_t* slots = nullptr;
  uint32_t slot_count = 0;
  uint32_t slot_bytes = 0;  // at least kSegmentBytes, at most kMaxSegments of these
};

// Copies and checks the request that begins at `counter`; `queued` is the record. kInvalidArgument:
// the record is further ahead than the queue is long, or the request names another counter or queue
// pair, has an opcode that is none of verbs.h, has segments beyond `queued` or fewer than its
// opcode needs, has inline data that it cannot have, or was changed since `seen` saw it.
// send->slots then says how many slots the request takes, or is 0 if that is unknown.
absl::Status ReadSend(const FoundSendQueue& queue, uint16_t counter, uint16_t queued,
                      const SeenSlots& seen, FoundSend* send);

// Copies the buffers of the receive in the slot at `slot`, which has room for one per segment, to
// `sges`. Returns how many there are.
size_t ReadReceive(const uint8_t* slot, uint32_t slot_bytes, absl::Span<ScatterGather> sges);

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_REQUEST_READER_H_
