// A connection of libibverbs and librdmacm as such, without any of Baton: what the benchmark's
// client uses, and the servers that Baton is compared with.
//
// Work requests are collected, and each kind posted as one list with Flush. Every send is
// signalled. Thread-compatible.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/protocol.h"
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
// As Baton asks for its connections.
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

}  // namespace baton::bench

#endif  // TESTS_BENCH_RAW_CONNECTION_H_
