#include "tests/lib/driver/raw_peer.h"

#include <sched.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "tests/harness/wait_until.h"

namespace baton::driver::testing {
namespace {

constexpr size_t kMemoryBytes = 2 * RawPeer::kSlots * RawPeer::kSlotBytes;
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
constexpr std::chrono::nanoseconds kPump = std::chrono::seconds(10);

std::chrono::nanoseconds PumpLimit() {
  const char* const milliseconds = std::getenv("BATON_PUMP_MS");
  if (milliseconds == nullptr) return harness::Patient(kPump);
  return std::chrono::milliseconds(std::atoi(milliseconds));
}

}  // namespace

RawPeer::RawPeer(uint32_t max_requests, const verbs::testing::Fabric& fabric) : fabric_(fabric) {
  device_ = verbs::testing::OpenDevice(fabric_).value();
  void* mapped =
      mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BATON_CHECK(mapped != MAP_FAILED);
  memory_ = static_cast<uint8_t*>(mapped);
  region_ = device_
                ->RegisterMemory(memory_, kMemoryBytes,
                                 verbs::kLocalWrite | verbs::kRemoteWrite | verbs::kRemoteRead |
                                     verbs::kRemoteAtomic)
                .value();
  queue_ = device_->CreateCompletionQueue(4 * max_requests).value();
  queue_pair_ =
      device_->CreateQueuePair({queue_.get(), queue_.get(), max_requests, max_requests, 1}).value();
}

RawPeer::~RawPeer() {
  id_.reset();
  listener_.reset();
  queue_pair_.reset();
  queue_.reset();
  region_.reset();
  device_.reset();
  munmap(memory_, kMemoryBytes);
}

verbs::ScatterGather RawPeer::Sge(const uint8_t* at, uint32_t length) const {
  return {reinterpret_cast<uint64_t>(at), length, region_->lkey()};
}

void RawPeer::Connect(uint16_t port, std::string_view private_data) {
  parameters.private_data = std::string(private_data);
  id_ = device_->Connect({fabric_.host, port}, queue_pair_.get(), parameters).value();
}

uint16_t RawPeer::Listen() {
  listener_ = device_->Listen({fabric_.host, 0}, 8).value();
  return listener_->address().port;
}

void RawPeer::Disconnect() {
  if (id_) id_->Disconnect().IgnoreError();
}

void RawPeer::Vanish() {
  id_.reset();
  Turn();
}

void RawPeer::OnEvent(verbs::CmEvent event) {
  switch (event.type) {
    case verbs::CmEventType::kConnectRequest: {
      private_data = event.private_data;
      id_ = std::move(event.new_id);
      verbs::ConnectionParameters parameters;
      parameters.private_data = answer_;
      BATON_CHECK(
          (refuse_ ? id_->Reject(answer_) : id_->Accept(queue_pair_.get(), parameters)).ok());
      break;
    }
    case verbs::CmEventType::kEstablished:
      established = true;
      if (!listener_) private_data = event.private_data;
      break;
    case verbs::CmEventType::kRejected:
      rejected = true;
      private_data = event.private_data;
      break;
    case verbs::CmEventType::kUnreachable:
      unreachable = true;
      break;
    case verbs::CmEventType::kDisconnected:
      disconnected = true;
      break;
  }
}

void RawPeer::Turn() {
  device_->Progress();
  verbs::CmEvent event;
  while (device_->NextEvent(&event)) OnEvent(std::exchange(event, {}));
  // A queue has room again when completions of it were polled.
  verbs::Completion completion;
  while (queue_->Poll({&completion, 1}).value() == 1) {
    if ((completion.wr_id & kReceiveBit) == 0) {
      sent.push_back(completion);
    } else if (completion.status != verbs::CompletionStatus::kSuccess) {
      ++flushed_receives;
    } else {
      const uint8_t* slot = memory_ + (completion.wr_id & ~kReceiveBit) % kSlots * kSlotBytes;
      const bool message = completion.opcode == verbs::CompletionOpcode::kReceive;
      received.emplace_back(reinterpret_cast<const char*>(slot), message ? completion.byte_len : 0);
      if (completion.has_immediate) immediates.push_back(completion.immediate);
    }
  }
}

void RawPeer::Receive() {
  const uint64_t index = posted_receives_++;
  const verbs::ScatterGather sge = Sge(memory_ + index % kSlots * kSlotBytes, kSlotBytes);
  const verbs::ReceiveRequest request = {kReceiveBit | index, {&sge, 1}};
  size_t posted = 0;
  BATON_CHECK(queue_pair_->PostReceive({&request, 1}, &posted).ok());
}

void RawPeer::Send(std::string_view text) {
  std::memcpy(send_slot(posted_sends_), text.data(), text.size());
  Post({}, static_cast<uint32_t>(text.size()));
}

void RawPeer::Post(verbs::SendRequest request, uint32_t length) {
  const verbs::ScatterGather sge = Sge(send_slot(posted_sends_), length);
  request.wr_id = posted_sends_++;
  request.sges = {&sge, 1};
  size_t posted = 0;
  BATON_CHECK(queue_pair_->PostSend({&request, 1}, &posted).ok());
}

bool Pump(const std::function<void()>& turn, const std::function<bool()>& done) {
  const uint64_t deadline = MonotonicNanoseconds() + PumpLimit().count();
  while (!done()) {
    if (MonotonicNanoseconds() > deadline) return false;
    turn();
    sched_yield();
  }
  return true;
}

}  // namespace baton::driver::testing
