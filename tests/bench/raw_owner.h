// An owner of queues that is a loop on verbs.h without anything of Baton above the queues' driver:
// no logs, no worker library, and nothing that another process could go on from.
#ifndef TESTS_BENCH_RAW_OWNER_H_
#define TESTS_BENCH_RAW_OWNER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/verbs.h"
#include "tests/bench/queue_owner.h"
#include "tests/lib/nic/harness.h"

namespace baton::bench {

// A queue pair of verbs.h, its completion queue, and memory for its messages of kEchoBytes.
// Requests are collected, and Flush() posts each kind as one list. Every send is signalled.
// Thread-compatible.
class EchoQueues {
 public:
  // Twice the depth for receives, from 0 on, and as many for messages that are sent from here.
  static constexpr uint32_t kReceiveBuffers = 2 * kEchoDepth;
  static constexpr uint32_t kBuffers = 2 * kReceiveBuffers;

  // `device` outlives it. All receives are posted.
  static absl::StatusOr<std::unique_ptr<EchoQueues>> Make(verbs::Device* device);

  verbs::QueuePair* queue_pair() { return queue_pair_.get(); }
  uint8_t* buffer(uint32_t index) { return memory_.begin() + size_t{index} * kEchoBytes; }
  // The buffer that a completed receive was posted with.
  static uint32_t BufferOf(const verbs::Completion& receive) {
    return static_cast<uint32_t>(receive.wr_id % kReceiveBuffers);
  }

  // Adds a receive into the next buffer. REQUIRES: at most kEchoDepth are added between two
  // flushes. The same holds for Send().
  void Receive() {
    const size_t at = receive_count_++;
    receive_buffers_[at].address = AddressOf(static_cast<uint32_t>(next_ % kReceiveBuffers));
    receives_[at].wr_id = next_++;
  }
  void Send(uint32_t buffer) {
    const size_t at = send_count_++;
    send_buffers_[at].address = AddressOf(buffer);
    sends_[at].wr_id = buffer;
  }
  absl::Status Flush();

  // Returns the next completions, at most 64. An error if one of them is none of success.
  absl::StatusOr<absl::Span<const verbs::Completion>> Poll();

 private:
  explicit EchoQueues() : memory_(uint64_t{kBuffers} * kEchoBytes) {}
  absl::Status Open(verbs::Device* device);
  uint64_t AddressOf(uint32_t index) const {
    return reinterpret_cast<uintptr_t>(memory_.begin()) + uint64_t{index} * kEchoBytes;
  }

  nic::SharedFile memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> completions_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;

  uint64_t next_ = 0;  // receive
  size_t receive_count_ = 0;
  size_t send_count_ = 0;
  std::array<verbs::ScatterGather, kEchoDepth> receive_buffers_, send_buffers_;
  std::array<verbs::ReceiveRequest, kEchoDepth> receives_;
  std::array<verbs::SendRequest, kEchoDepth> sends_;
  std::array<verbs::Completion, 64> taken_;
};

class RawOwner final : public QueueOwner {
 public:
  static absl::StatusOr<std::unique_ptr<RawOwner>> Start(std::unique_ptr<verbs::Device> device);

  uint16_t port() const override { return listener_->address().port; }
  absl::Status Establish() override;
  bool established() const override { return established_; }
  absl::StatusOr<int> Turn() override;
  absl::Status Wait() override;
  uint64_t received() const override { return received_; }
  uint64_t answered() const override { return answered_; }

 private:
  explicit RawOwner(std::unique_ptr<verbs::Device> device) : device_(std::move(device)) {}

  const std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<EchoQueues> queues_;
  std::unique_ptr<verbs::Listener> listener_;
  std::unique_ptr<verbs::ConnectionId> id_;
  bool established_ = false;
  absl::Span<const verbs::Completion> taken_;  // that Wait() has found
  uint64_t received_ = 0;
  uint64_t answered_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_RAW_OWNER_H_
