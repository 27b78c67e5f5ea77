#include "tests/fuzz/memory_device.h"

#include <utility>

#include "absl/status/status.h"
#include "lib/arena/layout.h"
#include "lib/base/check.h"

namespace baton::fuzz {

using verbs::CmEventType;
using verbs::CompletionStatus;
using verbs::QueuePairState;

// ---------------------------------------------------------------- completion queue

absl::StatusOr<int> MemoryCompletionQueue::Poll(absl::Span<verbs::Completion> completions) {
  const size_t count = completions_.Copy(completions);
  completions_.Drop(count);
  return static_cast<int>(count);
}

// An overrun is the driver's fault: it bounds what is outstanding.
void MemoryCompletionQueue::Add(const verbs::Completion& completion) {
  BATON_CHECK(completions_.size() < entries_);
  completions_.Add(completion);
}

// ---------------------------------------------------------------- queue pair

MemoryQueuePair::MemoryQueuePair(MemoryDevice* device, const verbs::QueuePairOptions& options,
                                 uint32_t number)
    : FakeQueuePair(number), device_(device), options_(options) {
  device_->queue_pairs_.push_back(this);
}

// P4: what is destroyed has nothing outstanding that could still touch memory.
MemoryQueuePair::~MemoryQueuePair() {
  std::erase(device_->queue_pairs_, this);
  for (const MemoryConnection* connection : device_->connections_) {
    BATON_CHECK(connection->queue_pair() != this);
  }
}

absl::Status MemoryQueuePair::PostSend(absl::Span<const verbs::SendRequest> requests,
                                       size_t* posted) {
  *posted = 0;
  BATON_CHECK(state_ == QueuePairState::kReadyToSend || state_ == QueuePairState::kError);
  for (const verbs::SendRequest& request : requests) {
    CheckOrder(request.wr_id, &next_send_);
    BATON_CHECK(sends_.size() < options_.max_send_requests);
    BATON_CHECK(static_cast<uint8_t>(request.opcode) < verbs::kOpcodeCount);
    CheckBuffers(request.sges);
    sends_.emplace_back(request);
    ++*posted;
  }
  device_->OnPost();
  return absl::OkStatus();
}

absl::Status MemoryQueuePair::PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                                          size_t* posted) {
  *posted = 0;
  for (const verbs::ReceiveRequest& request : requests) {
    CheckOrder(request.wr_id, &next_receive_);
    BATON_CHECK(receives_.size() < options_.max_receive_requests);
    CheckBuffers(request.sges);
    receives_.emplace_back(request);
    ++*posted;
  }
  device_->OnPost();
  return absl::OkStatus();
}

void MemoryQueuePair::CheckOrder(uint64_t wr_id, uint64_t* next) {
  BATON_CHECK(arena::WrIdSequence(wr_id) == (*next)++);
}

void MemoryQueuePair::CheckBuffers(absl::Span<const verbs::ScatterGather> sges) const {
  BATON_CHECK(sges.size() <= options_.max_scatter_gather);
  for (const verbs::ScatterGather& sge : sges) BATON_CHECK(device_->IsRegistered(sge));
}

bool MemoryQueuePair::CompleteSend(CompletionStatus status, std::string* message) {
  if (sends_.empty() || state_ == QueuePairState::kInit) return false;
  if (state_ == QueuePairState::kError) status = CompletionStatus::kFlushError;
  const Request request = std::move(sends_.front());
  sends_.pop_front();
  if (message != nullptr) *message = request.Gather();
  static_cast<MemoryCompletionQueue*>(options_.send_queue)->Add(request.Complete(number(), status));
  if (status != CompletionStatus::kSuccess) Fail();
  return true;
}

bool MemoryQueuePair::Deliver(std::string_view message) {
  if (state_ != QueuePairState::kReadyToSend || receives_.empty()) return false;
  const Request request = std::move(receives_.front());
  receives_.pop_front();
  verbs::Completion completion = request.Complete(number());
  completion.byte_len = static_cast<uint32_t>(message.size());
  // The key was good when it was posted; the region may have gone since, which is for a real device
  // to find out.
  if (request.Scatter(message) != 0) {
    completion.status = CompletionStatus::kLocalLengthError;
    Fail();
  }
  static_cast<MemoryCompletionQueue*>(options_.receive_queue)->Add(completion);
  return true;
}

bool MemoryQueuePair::Flush() {
  if (state_ != QueuePairState::kError) return false;
  if (CompleteSend(CompletionStatus::kFlushError)) return true;
  if (receives_.empty()) return false;
  static_cast<MemoryCompletionQueue*>(options_.receive_queue)
      ->Add(receives_.front().Complete(number(), CompletionStatus::kFlushError));
  receives_.pop_front();
  return true;
}

// ---------------------------------------------------------------- connection

MemoryConnection::MemoryConnection(MemoryDevice* device, bool active, MemoryQueuePair* queue_pair)
    : device_(device), active_(active), queue_pair_(queue_pair), answered_(active) {
  device_->connections_.push_back(this);
}

MemoryConnection::~MemoryConnection() {
  std::erase(device_->connections_, this);
  std::erase_if(device_->events_, [this](const verbs::CmEvent& event) { return event.id == this; });
  if (queue_pair_ != nullptr) queue_pair_->Fail();
}

absl::Status MemoryConnection::Accept(verbs::QueuePair* queue_pair,
                                      const verbs::ConnectionParameters& parameters) {
  BATON_CHECK(!active_ && !answered_);
  answered_ = true;
  if (parameters.private_data.size() > MemoryDevice::kMaxPrivateData) {
    return absl::InvalidArgumentError("private data");
  }
  if (ended_) return absl::FailedPreconditionError("the peer has gone");
  queue_pair_ = static_cast<MemoryQueuePair*>(queue_pair);
  queue_pair_->Ready();
  return absl::OkStatus();
}

absl::Status MemoryConnection::Reject(std::string_view private_data) {
  BATON_CHECK(!active_ && !answered_);
  answered_ = ended_ = true;
  if (private_data.size() > MemoryDevice::kMaxPrivateData) {
    return absl::InvalidArgumentError("private data");
  }
  return absl::OkStatus();
}

absl::Status MemoryConnection::Disconnect() {
  if (queue_pair_ != nullptr) queue_pair_->Fail();
  if (ended_) return absl::FailedPreconditionError("it has ended");
  ended_ = true;
  if (established_) device_->Report(CmEventType::kDisconnected, this);
  return absl::OkStatus();
}

void MemoryConnection::Establish() {
  if (established_ || ended_ || queue_pair_ == nullptr || !answered_) return;
  established_ = true;
  queue_pair_->Ready();
  device_->Report(CmEventType::kEstablished, this);
}

void MemoryConnection::Refuse() {
  if (!active_ || established_ || ended_) return;
  ended_ = true;
  queue_pair_->Fail();
  device_->Report(active_ ? CmEventType::kRejected : CmEventType::kUnreachable, this);
}

void MemoryConnection::End() {
  if (ended_ || !reported_) return;
  ended_ = true;
  if (queue_pair_ != nullptr) queue_pair_->Fail();
  device_->Report(established_ || !active_ ? CmEventType::kDisconnected : CmEventType::kUnreachable,
                  this);
}

// ---------------------------------------------------------------- device

MemoryDevice::~MemoryDevice() { events_.clear(); }

absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> MemoryDevice::CreateCompletionQueue(
    uint32_t entries) {
  return std::make_unique<MemoryCompletionQueue>(entries);
}

absl::StatusOr<std::unique_ptr<verbs::QueuePair>> MemoryDevice::CreateQueuePair(
    const verbs::QueuePairOptions& options) {
  if (refuse_queue_pairs) return absl::ResourceExhaustedError("queue pairs");
  return std::make_unique<MemoryQueuePair>(this, options, next_number_++);
}

absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> MemoryDevice::Connect(
    const verbs::Address&, verbs::QueuePair* queue_pair, const verbs::ConnectionParameters&) {
  auto id =
      std::make_unique<MemoryConnection>(this, true, static_cast<MemoryQueuePair*>(queue_pair));
  id->reported_ = true;
  return id;
}

bool MemoryDevice::NextEvent(verbs::CmEvent* event) {
  if (!FakeDevice::NextEvent(event)) return false;
  if (event->new_id) static_cast<MemoryConnection*>(event->new_id.get())->reported_ = true;
  return true;
}

void MemoryDevice::RequestConnection(std::string_view private_data) {
  verbs::CmEvent event;
  event.type = CmEventType::kConnectRequest;
  event.private_data = std::string(private_data);
  event.listener = requested_.get();
  event.new_id = std::make_unique<MemoryConnection>(this, false, nullptr);
  events_.push_back(std::move(event));
}

void MemoryDevice::OnPost() {
  ++posts_;
  if (meanwhile) meanwhile();
}

}  // namespace baton::fuzz
