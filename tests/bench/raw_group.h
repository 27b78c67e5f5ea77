// Many connections of libibverbs and librdmacm without any of Baton, sharing what those of one
// process can: protection domain, registered memory, completion queue. Each has kEchoDepth receives
// posted, always, and as many slots to send from.
//
// Thread-compatible.
#ifndef TESTS_BENCH_RAW_GROUP_H_
#define TESTS_BENCH_RAW_GROUP_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/bench/raw_connection.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::bench {

constexpr uint32_t kEchoBytes = 64;
constexpr uint32_t kEchoDepth = 2;  // the completion queues of Soft-RoCE have 32,767 entries

struct EventChannelCloser {
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
};
using EventChannel = std::unique_ptr<rdma_event_channel, EventChannelCloser>;
// That does not block.
absl::StatusOr<EventChannel> OpenEventChannel();
// The next one, or nothing; to be acknowledged before its id goes.
struct CmEventAcknowledger {
  void operator()(rdma_cm_event* event) const { (void)rdma_ack_cm_event(event); }
};
using CmEventPointer = std::unique_ptr<rdma_cm_event, CmEventAcknowledger>;
absl::StatusOr<CmEventPointer> NextEvent(rdma_event_channel* channel);

class RawGroup {
 public:
  static absl::StatusOr<std::unique_ptr<RawGroup>> Create(ibv_context* context,
                                                          uint32_t max_connections);

  // Makes the connection's queue pair, with its receives; `id->context` is its number from then on.
  absl::StatusOr<uint32_t> Add(CmId id);
  void Remove(uint32_t connection);
  uint32_t size() const { return size_; }

  // Of kEchoBytes, by slots below kEchoDepth.
  uint8_t* sent(uint32_t connection, uint32_t slot) const;
  const uint8_t* received(uint32_t connection, uint32_t slot) const;
  absl::Status Send(uint32_t connection, uint32_t slot);
  absl::Status Receive(uint32_t connection, uint32_t slot);

  struct Done {
    bool received = false;
    uint32_t connection = 0;
    uint32_t slot = 0;
  };
  // The next completions; those that a connection's end has flushed are left out.
  absl::StatusOr<absl::Span<const Done>> Poll();
  // The next completion that comes makes completion_fd() readable, until this is called again.
  absl::Status RequestNotification();
  int completion_fd() const { return channel_->fd; }

 private:
  RawGroup(uint32_t max_connections, examples::SharedMemory memory)
      : memory_(std::move(memory)), ids_(max_connections) {}
  absl::Status Open(ibv_context* context);
  size_t OffsetOf(uint32_t connection, bool sent, uint32_t slot) const;

  examples::SharedMemory memory_;
  // In the order in which they are made: they go in the opposite one, the queue pairs before all.
  std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>> domain_;
  std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>> region_;
  std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>> channel_;
  std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>> completions_;
  std::vector<CmId> ids_;
  uint32_t size_ = 0;

  std::array<ibv_wc, 32> polled_;
  std::array<Done, 32> done_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_RAW_GROUP_H_
