#include "tests/native/peer_connection.h"

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/bench/protocol.h"
#include "tests/bench/raw_connection.h"
#include "tests/harness/patience.h"
#include "tests/native/native_environment.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::native {
namespace {

constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(20);

class RawPeer final : public PeerConnection {
 public:
  explicit RawPeer(std::unique_ptr<bench::RawConnection> connection)
      : connection_(std::move(connection)) {}

  uint8_t* slab() const override { return connection_->slab(); }
  absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) override {
    return connection_->Receive(slot, offset, length);
  }
  absl::Status Send(size_t offset, uint32_t length) override {
    return connection_->Send(offset, length);
  }
  absl::Status Flush() override { return connection_->Flush(); }
  absl::StatusOr<absl::Span<const uint32_t>> Poll() override {
    received_.clear();
    BATON_ASSIGN_OR_RETURN(const absl::Span<const ibv_wc> taken, connection_->Poll());
    for (const ibv_wc& completion : taken) {
      if (completion.opcode != IBV_WC_RECV) continue;
      received_.push_back(static_cast<uint32_t>(completion.wr_id));
    }
    return received_;
  }

 private:
  const std::unique_ptr<bench::RawConnection> connection_;
  std::vector<uint32_t> received_;
};

class SoftPeer final : public PeerConnection {
 public:
  static absl::StatusOr<std::unique_ptr<PeerConnection>> Connect(const std::string& host,
                                                                 uint16_t port);

  uint8_t* slab() const override { return memory_.base(); }
  absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) override {
    const verbs::ScatterGather sge = SgeOf(offset, length);
    const verbs::ReceiveRequest request = {slot, {&sge, 1}};
    size_t posted = 0;
    return queue_pair_->PostReceive({&request, 1}, &posted);
  }
  absl::Status Send(size_t offset, uint32_t length) override {
    const verbs::ScatterGather sge = SgeOf(offset, length);
    verbs::SendRequest request;
    request.opcode = verbs::Opcode::kSend;
    request.sges = {&sge, 1};
    size_t posted = 0;
    return queue_pair_->PostSend({&request, 1}, &posted);
  }
  absl::Status Flush() override {
    device_->Progress();
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Span<const uint32_t>> Poll() override;

 private:
  explicit SoftPeer(examples::SharedMemory memory) : memory_(std::move(memory)) {}

  verbs::ScatterGather SgeOf(size_t offset, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(slab() + offset), length, region_->lkey()};
  }
  absl::Status Make();
  absl::Status AwaitEstablished();

  examples::SharedMemory memory_;
  std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> completions_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::vector<uint32_t> received_;
};

absl::Status SoftPeer::Make() {
  BATON_ASSIGN_OR_RETURN(device_, verbs::soft::CreateSoftDevice({}));
  BATON_ASSIGN_OR_RETURN(region_,
                         device_->RegisterMemory(slab(), bench::kSlabBytes, verbs::kLocalWrite));
  BATON_ASSIGN_OR_RETURN(completions_, device_->CreateCompletionQueue(2 * bench::kSlots));
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = completions_.get();
  options.max_send_requests = options.max_receive_requests = bench::kSlots;
  BATON_ASSIGN_OR_RETURN(queue_pair_, device_->CreateQueuePair(options));
  for (uint32_t slot = 0; slot < bench::kSlots; ++slot) {
    BATON_RETURN_IF_ERROR(Receive(slot, bench::kReceiveOffset + slot * sizeof(bench::Message),
                                  sizeof(bench::Message)));
  }
  return absl::OkStatus();
}

absl::Status SoftPeer::AwaitEstablished() {
  const uint64_t deadline = MonotonicNanoseconds() + harness::Patient(kPatience).count();
  while (MonotonicNanoseconds() < deadline) {
    device_->Progress();
    verbs::CmEvent event;
    if (!device_->NextEvent(&event)) continue;
    if (event.type == verbs::CmEventType::kEstablished) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("not established: ", event.status.message()));
  }
  return absl::DeadlineExceededError("not established in time");
}

absl::StatusOr<std::unique_ptr<PeerConnection>> SoftPeer::Connect(const std::string& host,
                                                                  uint16_t port) {
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(bench::kSlabBytes));
  std::unique_ptr<SoftPeer> peer(new SoftPeer(std::move(memory)));
  BATON_RETURN_IF_ERROR(peer->Make());
  BATON_ASSIGN_OR_RETURN(peer->id_,
                         peer->device_->Connect({host, port}, peer->queue_pair_.get(), {}));
  BATON_RETURN_IF_ERROR(peer->AwaitEstablished());
  return peer;
}

absl::StatusOr<absl::Span<const uint32_t>> SoftPeer::Poll() {
  received_.clear();
  device_->Progress();
  std::array<verbs::Completion, 32> taken;
  BATON_ASSIGN_OR_RETURN(const int count, completions_->Poll(absl::MakeSpan(taken)));
  for (const verbs::Completion& one : absl::MakeSpan(taken).first(static_cast<size_t>(count))) {
    if (one.status != verbs::CompletionStatus::kSuccess) {
      return absl::InternalError(
          absl::StrCat("a request failed: ", std::string(CompletionStatusName(one.status))));
    }
    if (one.opcode == verbs::CompletionOpcode::kReceive) {
      received_.push_back(static_cast<uint32_t>(one.wr_id));
    }
  }
  return received_;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerConnection>> PeerConnection::Connect(const std::string& host,
                                                                        uint16_t port) {
  if (IsSoftUnderTest()) return SoftPeer::Connect(host, port);
  BATON_ASSIGN_OR_RETURN(auto connection, bench::RawConnection::Connect(host, port));
  return std::make_unique<RawPeer>(std::move(connection));
}

}  // namespace baton::native
