#include "tests/bench/null_device.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "lib/base/check.h"
#include "lib/base/status.h"
#include "tests/harness/processors.h"

namespace baton::bench {
namespace {

constexpr uint32_t kKey = 1;

class LockedRegion final : public verbs::testing::KeyedRegion {
 public:
  LockedRegion(void* address, size_t length)
      : KeyedRegion(kKey), address_(address), length_(length) {}
  ~LockedRegion() override { munlock(address_, length_); }

 private:
  void* const address_;
  const size_t length_;
};

class NullQueuePair final : public verbs::testing::FakeQueuePair {
 public:
  // `messages`: those to the peer are counted there; null when there is none.
  NullQueuePair(const NullDevice* device, NullCompletionQueue* queue,
                std::atomic<uint64_t>* messages, uint32_t number)
      : FakeQueuePair(number), device_(device), queue_(queue), messages_(messages) {}

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
  void SetReady() { state_ = verbs::QueuePairState::kReadyToSend; }

 private:
  const NullDevice* const device_;
  NullCompletionQueue* const queue_;
  std::atomic<uint64_t>* const messages_;
};

class NullId final : public verbs::testing::FakeConnectionId {
 public:
  explicit NullId(NullDevice* device) : device_(device) {}
  absl::Status Accept(verbs::QueuePair* queue_pair, const verbs::ConnectionParameters&) override {
    static_cast<NullQueuePair*>(queue_pair)->SetReady();
    device_->Report(verbs::CmEventType::kEstablished, this);
    return absl::OkStatus();
  }

 private:
  NullDevice* const device_;
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
      harness::PauseOrYield(++looks);
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
    done.opcode = verbs::testing::CompletionOf(requests[i].opcode);
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

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> NullDevice::RegisterMemory(void* address,
                                                                                size_t length,
                                                                                uint32_t access) {
  // The driver's own, for local access alone, stay registered, and would unlock a grant's.
  const bool granted = (access & (verbs::kRemoteRead | verbs::kRemoteWrite)) != 0;
  if (!pins_ || !granted) return std::make_unique<verbs::testing::KeyedRegion>(kKey);
  if (mlock(address, length) != 0) return ErrnoStatus(errno, "mlock (see RLIMIT_MEMLOCK)");
  return std::make_unique<LockedRegion>(address, length);
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

bool NullDevice::NextEvent(verbs::CmEvent* event) {
  if (!events_.empty()) return FakeDevice::NextEvent(event);
  if (requests_ == 0 || listener_ == nullptr) return false;
  --requests_;
  *event = {};
  event->type = verbs::CmEventType::kConnectRequest;
  event->listener = listener_;
  event->new_id = std::make_unique<NullId>(this);
  return true;
}

}  // namespace baton::bench
