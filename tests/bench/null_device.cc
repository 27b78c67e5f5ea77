#include "tests/bench/null_device.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>

#include "lib/base/check.h"
#include "lib/base/status.h"
#include "tests/bench/impatient_wait.h"

namespace baton::bench {
namespace {

class NullRegion final : public verbs::MemoryRegion {
 public:
  // `length`: of what is locked, from `address` on; 0: nothing is.
  NullRegion(void* address, size_t length) : address_(address), length_(length) {}
  ~NullRegion() override {
    if (length_ != 0) munlock(address_, length_);
  }
  uint32_t lkey() const override { return 1; }
  uint32_t rkey() const override { return 1; }

 private:
  void* const address_;
  const size_t length_;
};

verbs::CompletionOpcode CompletionOf(verbs::Opcode opcode) {
  switch (opcode) {
    case verbs::Opcode::kWrite:
    case verbs::Opcode::kWriteWithImmediate:
      return verbs::CompletionOpcode::kWrite;
    case verbs::Opcode::kRead:
      return verbs::CompletionOpcode::kRead;
    case verbs::Opcode::kCompareAndSwap:
      return verbs::CompletionOpcode::kCompareAndSwap;
    case verbs::Opcode::kFetchAndAdd:
      return verbs::CompletionOpcode::kFetchAndAdd;
    default:
      return verbs::CompletionOpcode::kSend;
  }
}

class NullQueuePair final : public verbs::QueuePair {
 public:
  // `messages`: those to the peer are counted there; null when there is none.
  NullQueuePair(const NullDevice* device, NullCompletionQueue* queue,
                std::atomic<uint64_t>* messages, uint32_t number)
      : device_(device), queue_(queue), messages_(messages), number_(number) {}

  uint32_t number() const override { return number_; }
  verbs::QueuePairState state() const override { return state_; }
  absl::Status PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) override {
    *posted = requests.size();
    if (device_->holding()) return absl::OkStatus();
    queue_->AddSends(requests);
    if (messages_ != nullptr) messages_->fetch_add(requests.size(), std::memory_order_release);
    return absl::OkStatus();
  }
  // Without a peer they stay posted.
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    for (const verbs::ReceiveRequest& request : requests) {
      if (messages_ != nullptr) queue_->AddReceive(request.wr_id);
    }
    *posted = requests.size();
    return absl::OkStatus();
  }
  absl::Status SetError() override {
    state_ = verbs::QueuePairState::kError;
    return absl::OkStatus();
  }
  void SetReady() { state_ = verbs::QueuePairState::kReadyToSend; }

 private:
  const NullDevice* const device_;
  NullCompletionQueue* const queue_;
  std::atomic<uint64_t>* const messages_;
  const uint32_t number_;
  verbs::QueuePairState state_ = verbs::QueuePairState::kInit;
};

class NullId final : public verbs::ConnectionId {
 public:
  explicit NullId(NullDevice* device) : device_(device) {}

  verbs::Address local_address() const override { return {"127.0.0.1", 1}; }
  verbs::Address peer_address() const override { return {"127.0.0.1", 2}; }
  verbs::ReadDepths depths() const override { return {16, 16}; }
  absl::Status Accept(verbs::QueuePair* queue_pair, const verbs::ConnectionParameters&) override {
    static_cast<NullQueuePair*>(queue_pair)->SetReady();
    device_->Establish(this);
    return absl::OkStatus();
  }
  absl::Status Reject(std::string_view) override { return absl::OkStatus(); }
  absl::Status Disconnect() override { return absl::OkStatus(); }

 private:
  NullDevice* const device_;
};

class NullListener final : public verbs::Listener {
 public:
  explicit NullListener(const verbs::Address& address) : address_(address) {}
  verbs::Address address() const override { return address_; }

 private:
  const verbs::Address address_;
};

}  // namespace

// ---------------------------------------------------------------- peer

NullPeer::~NullPeer() {
  stop_.store(true);
  thread_.join();
}

void NullPeer::Run() {
  uint64_t answered = 0;
  uint32_t looks = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t sent = wire_.to_peer.load(std::memory_order_acquire);
    if (sent != answered) {
      answered = sent;
      wire_.to_us.store(answered, std::memory_order_seq_cst);
      if (wire_.asleep.load(std::memory_order_seq_cst)) eventfd_write(wire_.wake.get(), 1);
      looks = 0;
    } else {
      PauseOrYield(++looks);
    }
  }
}

// ---------------------------------------------------------------- device

NullCompletionQueue::NullCompletionQueue(uint32_t entries, NullWire* wire)
    : ring_(std::bit_ceil(entries)),
      mask_(ring_.size() - 1),
      wire_(*wire),
      receives_(ring_.size()) {}

void NullCompletionQueue::AddSends(absl::Span<const verbs::SendRequest> requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    verbs::Completion& done = ring_[(tail_ + i) & mask_];
    done.wr_id = requests[i].wr_id;
    done.opcode = CompletionOf(requests[i].opcode);
  }
  tail_ += requests.size();
}

absl::StatusOr<int> NullCompletionQueue::Poll(absl::Span<verbs::Completion> completions) {
  while (received_ != posted_ && received_ != wire_.to_us.load(std::memory_order_acquire)) {
    verbs::Completion& done = ring_[tail_++ & mask_];
    done.wr_id = receives_[received_++ & mask_];
    done.opcode = verbs::CompletionOpcode::kReceive;
  }
  const size_t count = std::min<size_t>(completions.size(), tail_ - head_);
  for (size_t i = 0; i < count; ++i) completions[i] = ring_[(head_ + i) & mask_];
  head_ += count;
  if (head_ == tail_) head_ = tail_ = 0;  // what is in the cache is used again
  return static_cast<int>(count);
}

absl::Status NullCompletionQueue::RequestNotification() {
  wire_.asleep.store(true, std::memory_order_seq_cst);
  return absl::OkStatus();
}

NullDevice::NullDevice(NullPeerKind peer, bool pins) : kind_(peer), pins_(pins) {
  wire_.wake.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  BATON_CHECK(wire_.wake);
  if (peer == NullPeerKind::kThread) peer_ = std::make_unique<NullPeer>(&wire_);
}

void NullDevice::Progress() {
  if (!wire_.asleep.load(std::memory_order_relaxed)) return;
  wire_.asleep.store(false, std::memory_order_relaxed);
  eventfd_t value;
  eventfd_read(wire_.wake.get(), &value);
}

verbs::DeviceLimits NullDevice::limits() const {
  verbs::DeviceLimits limits;
  limits.max_queue_pairs = 1 << 20;
  limits.max_completion_queues = 1 << 10;
  limits.max_completion_queue_entries = 1 << 24;
  limits.max_send_requests = limits.max_receive_requests = 1 << 14;
  limits.max_scatter_gather = 16;
  limits.max_memory_regions = 1 << 10;
  limits.max_private_data_connect = limits.max_private_data_accept =
      limits.max_private_data_reject = 196;
  limits.max_initiator_depth = 16;
  limits.max_message_bytes = 1 << 30;
  limits.atomics = limits.send_with_invalidate = true;
  return limits;
}

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> NullDevice::RegisterMemory(void* address,
                                                                                size_t length,
                                                                                uint32_t access) {
  // The driver's own, for local access alone, stay registered, and would unlock a grant's.
  const bool granted = (access & (verbs::kRemoteRead | verbs::kRemoteWrite)) != 0;
  if (!pins_ || !granted) return std::make_unique<NullRegion>(nullptr, 0);
  if (mlock(address, length) != 0) return ErrnoStatus(errno, "mlock (see RLIMIT_MEMLOCK)");
  return std::make_unique<NullRegion>(address, length);
}

absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> NullDevice::CreateCompletionQueue(
    uint32_t entries) {
  return std::make_unique<NullCompletionQueue>(entries, &wire_);
}

absl::StatusOr<std::unique_ptr<verbs::QueuePair>> NullDevice::CreateQueuePair(
    const verbs::QueuePairOptions& options) {
  std::atomic<uint64_t>* messages = nullptr;
  if (kind_ == NullPeerKind::kThread) messages = &wire_.to_peer;
  if (kind_ == NullPeerKind::kAtOnce) messages = &wire_.to_us;
  return std::make_unique<NullQueuePair>(
      this, static_cast<NullCompletionQueue*>(options.send_queue), messages, ++queue_pairs_);
}

absl::StatusOr<std::unique_ptr<verbs::Listener>> NullDevice::Listen(const verbs::Address& address,
                                                                    int) {
  auto listener = std::make_unique<NullListener>(address);
  listener_ = listener.get();
  return listener;
}

absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> NullDevice::Connect(
    const verbs::Address&, verbs::QueuePair*, const verbs::ConnectionParameters&) {
  return absl::UnimplementedError("the null device has nobody to connect to");
}

bool NullDevice::NextEvent(verbs::CmEvent* event) {
  if (!established_.empty()) {
    *event = {};
    event->type = verbs::CmEventType::kEstablished;
    event->id = established_.front();
    established_.pop_front();
    return true;
  }
  if (requests_ == 0 || listener_ == nullptr) return false;
  --requests_;
  *event = {};
  event->type = verbs::CmEventType::kConnectRequest;
  event->listener = listener_;
  event->new_id = std::make_unique<NullId>(this);
  return true;
}

}  // namespace baton::bench
