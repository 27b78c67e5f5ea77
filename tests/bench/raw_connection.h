// Connections of libibverbs and librdmacm as such, without any of Baton: what the benchmark's
// clients use, and the servers that Baton is compared with.
#ifndef TESTS_BENCH_RAW_CONNECTION_H_
#define TESTS_BENCH_RAW_CONNECTION_H_

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/bench/bench_server.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::bench {

template <auto kDestroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    (void)kDestroy(object);
  }
};

struct RawId {
  void operator()(rdma_cm_id* id) const {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    (void)rdma_destroy_id(id);
  }
};
using CmId = std::unique_ptr<rdma_cm_id, RawId>;

absl::StatusOr<sockaddr_in> AddressOf(const std::string& host, uint16_t port);
// Baton asks for its connections with the same parameters.
rdma_conn_param ConnectionParameters();
// Without a channel librdmacm's calls wait for their outcomes.
absl::StatusOr<CmId> MakeId(rdma_event_channel* channel);

class RawListener {
 public:
  static absl::StatusOr<std::unique_ptr<RawListener>> Create(const std::string& host);
  uint16_t port() const;
  // Blocks until somebody connects.
  absl::StatusOr<CmId> NextRequest();

 private:
  explicit RawListener(CmId id) : id_(std::move(id)) {}
  CmId id_;
};

// Work requests are collected, and each kind posted as one list with Flush. Every send is
// signalled. Thread-compatible.
class RawConnection final : public Queue {
 public:
  // Blocks until it is established. Receives must have been posted by then: `before` does that.
  static absl::StatusOr<std::unique_ptr<RawConnection>> Connect(const std::string& host,
                                                                uint16_t port);
  // To be answered with Accept.
  static absl::StatusOr<std::unique_ptr<RawConnection>> Take(CmId request);
  absl::Status Accept();

  uint8_t* slab() const { return memory_.base(); }
  uint64_t payload_address() const { return reinterpret_cast<uint64_t>(slab() + kPayloadOffset); }
  uint32_t rkey() const { return region_->rkey; }

  absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) override;
  absl::Status Send(size_t offset, uint32_t length) override;
  absl::Status Remote(Op op, size_t offset, uint32_t length, uint64_t remote_address,
                      uint32_t rkey) override;
  absl::Status Flush();

  // The next completions; all are successes, or it is an error. wr_id of a receive is its slot.
  absl::StatusOr<absl::Span<const ibv_wc>> Poll();
  // Blocks until a completion comes that Poll has not found.
  absl::StatusOr<absl::Span<const ibv_wc>> Await();

 private:
  static constexpr size_t kBatch = kSlots;

  explicit RawConnection(examples::SharedMemory memory) : memory_(std::move(memory)) {}
  static absl::StatusOr<std::unique_ptr<RawConnection>> Create(CmId id);
  absl::Status MakeQueues();
  absl::StatusOr<ibv_send_wr*> NextSend(size_t offset, uint32_t length);

  examples::SharedMemory memory_;
  // In the order in which they are made: they go in the opposite one, the queue pair before all.
  std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>> domain_;
  std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>> region_;
  std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>> channel_;
  std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>> completions_;
  CmId id_;

  std::array<ibv_recv_wr, kBatch> receives_;
  std::array<ibv_sge, kBatch> receive_buffers_;
  std::array<ibv_send_wr, kBatch> sends_;
  std::array<ibv_sge, kBatch> send_buffers_;
  size_t receive_count_ = 0;
  size_t send_count_ = 0;
  std::array<ibv_wc, 32> taken_;
};

constexpr uint32_t kEchoBytes = 64;
constexpr uint32_t kEchoDepth = 2;  // the completion queues of Soft-RoCE have 32,767 entries

struct EventChannelCloser {
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
};
using EventChannel = std::unique_ptr<rdma_event_channel, EventChannelCloser>;
// The channel does not block.
absl::StatusOr<EventChannel> OpenEventChannel();
// The next one, or nothing; to be acknowledged before its id goes.
struct CmEventAcknowledger {
  void operator()(rdma_cm_event* event) const { (void)rdma_ack_cm_event(event); }
};
using CmEventPointer = std::unique_ptr<rdma_cm_event, CmEventAcknowledger>;
absl::StatusOr<CmEventPointer> NextEvent(rdma_event_channel* channel);

// Many connections that share what those of one process can: protection domain, registered memory,
// completion queue. Each has kEchoDepth receives posted, always, and as many slots to send from.
// Thread-compatible.
class RawGroup {
 public:
  static absl::StatusOr<std::unique_ptr<RawGroup>> Create(ibv_context* context,
                                                          uint32_t max_connections);

  // Makes the connection's queue pair, with its receives; `id->context` is its number from then on.
  absl::StatusOr<uint32_t> Add(CmId id);
  void Remove(uint32_t connection);
  uint32_t size() const { return size_; }

  // Each slot has kEchoBytes. Slots are below kEchoDepth.
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

#endif  // TESTS_BENCH_RAW_CONNECTION_H_
