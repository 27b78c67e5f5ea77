// Copies and checks a worker's work requests on their way from its logs to the device.
#ifndef LIB_DRIVER_REQUEST_LIST_H_
#define LIB_DRIVER_REQUEST_LIST_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// The limits of a service's buffers and device that a work request must keep.
struct RequestLimits {
  uint64_t buffer_bytes = 0;
  uint64_t max_message_bytes = 0;  // the longest send; 0: unknown
  uint32_t missing_opcodes = 0;    // a bit for each verbs::Opcode
};
RequestLimits LimitsOf(const arena::Arena& arena);

// Checks one work request on its own: opcode, flags, number and bounds of its buffers. Refuses
// regions.
absl::Status CheckRequest(const arena::WorkRequest& request, bool receive,
                          const RequestLimits& limits);

// Sends and receives in the device's form, checked. Each is a copy, so later writes of the worker
// do not change it. Allocates nothing after construction. Thread-compatible.
class RequestList {
 public:
  static constexpr uint32_t kAnyShard = UINT32_MAX;

  // Holds up to `capacity` requests. `lkey` is that of the arena's buffers.
  RequestList(const arena::Arena& arena, uint32_t lkey, size_t capacity);

  // Empties the list. The next requests are those of `shard`, and may name the heap of no other.
  // kAnyShard, as from construction on: they may name every heap.
  void Clear(uint32_t shard = kAnyShard) {
    if (shard != shard_) [[unlikely]]
      SetShard(shard);
    send_count_ = receive_count_ = sge_count_ = send_bytes_ = 0;
  }
  // kInvalidArgument: the request is invalid and not in the list. REQUIRES: room for it.
  absl::Status AddSend(const arena::WorkRequest& shared, uint64_t wr_id);
  absl::Status AddReceive(const arena::WorkRequest& shared, uint64_t wr_id);
  // Adds a connection's receives or sends with sequence numbers in [from, to). An error names the
  // invalid request; those before it are in the list.
  template <bool kReceive>
  absl::Status Add(uint32_t connection, uint32_t generation, uint64_t from, uint64_t to);

  // Writes the same requests into the device's queues, behind those of `batch`, instead of the
  // list. Does not post them. REQUIRES: the list has room for one.
  enum class Written : uint8_t {
    kAll,
    kRefused,  // by the queue pair; `batch` is unchanged
    kWrong,    // wrong() has the error that Add would return; `batch` is unchanged
  };
  Written WriteSends(uint32_t connection, uint32_t generation, uint64_t from, uint64_t to,
                     verbs::mlx5::QueuePair* queue_pair, verbs::mlx5::SendQueue::Batch* batch);
  Written WriteReceives(uint32_t connection, uint32_t generation, uint64_t from, uint64_t to,
                        verbs::mlx5::QueuePair* queue_pair,
                        verbs::mlx5::ReceiveQueue::Batch* batch);
  const absl::Status& wrong() const { return wrong_; }

  // Valid until Clear() or the list's destruction.
  absl::Span<const verbs::SendRequest> sends() const { return {sends_.data(), send_count_}; }
  uint64_t send_bytes() const { return send_bytes_; }  // in the buffers of all sends
  absl::Span<const verbs::ReceiveRequest> receives() const {
    return {receives_.data(), receive_count_};
  }

 private:
  struct Head;
  struct PlainSend;

  void SetShard(uint32_t shard);
  absl::Status NotUsable(const arena::BufferRange& range, int i) const;
  absl::Status CopySend(const arena::WorkRequest& shared, uint64_t wr_id);
  absl::Status CopyReceive(const arena::WorkRequest& shared, uint64_t wr_id);
  // Copies buffers behind the list's end without counting them in. Adds their bytes to `*length`.
  absl::Status CopyRanges(const arena::WorkRequest& shared, const Head& head, bool may_be_regions,
                          uint64_t* length);
  absl::Status CopyRange(const arena::BufferRange& shared, int i, bool may_be_region,
                         uint64_t* length);
  absl::Status CopyRegion(arena::BufferRange range, int i, bool may_be_region);
  bool HasRegions(int sge_count) const;
  bool ReadPlainRange(const arena::BufferRange& shared, uint64_t least, uint64_t most,
                      verbs::ScatterGather* sge) const;
  // Writes a request that is not plain.
  Written WriteOtherSend(const arena::WorkRequest& shared, uint64_t wr_id,
                         verbs::mlx5::QueuePair* queue_pair, verbs::mlx5::SendQueue::Batch* batch);
  Written WriteOtherReceive(const arena::WorkRequest& shared, uint64_t wr_id,
                            verbs::mlx5::QueuePair* queue_pair,
                            verbs::mlx5::ReceiveQueue::Batch* batch);

  // A request with one buffer within these limits is plain: it is written without further checks.
  struct PlainRequests {
    uint32_t opcodes = 0;           // a bit for each
    uint64_t least_send_bytes = 0;  // shorter sends are inline
    uint64_t most_send_bytes = 0;
    uint64_t most_bytes = 0;
  };
  static PlainRequests PlainRequestsOf(const RequestLimits& limits, uint32_t max_inline_bytes);

  const arena::Arena* arena_;
  RequestLimits limits_;
  uint32_t shard_ = kAnyShard;
  arena::UsableBuffers usable_ = {};
  uint64_t base_;  // address of the buffers
  uint32_t lkey_;
  uint32_t max_inline_bytes_;
  PlainRequests plain_;
  absl::Status wrong_;
  std::vector<verbs::SendRequest> sends_;
  std::vector<verbs::ReceiveRequest> receives_;
  std::vector<verbs::ScatterGather> sges_;
  size_t send_count_ = 0;
  size_t receive_count_ = 0;
  size_t sge_count_ = 0;
  uint64_t send_bytes_ = 0;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_REQUEST_LIST_H_
