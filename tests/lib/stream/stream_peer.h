// An end on plain verbs, of a stream to another one or to a service of tests
// (tests/worker/counted_stream.h).
#ifndef TESTS_LIB_STREAM_STREAM_PEER_H_
#define TESTS_LIB_STREAM_STREAM_PEER_H_

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/base/check.h"
#include "lib/stream/peer_stream.h"
#include "lib/verbs/soft/soft_device.h"
#include "lib/verbs/verbs.h"
#include "tests/lib/stream/stream_messages.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::testing {

// Nothing is on the way: all credit of this direction is with one of its ends, exactly.
inline bool IsConserved(const stream::SenderState& from, const stream::ReceiverState& to) {
  const uint32_t left = from.allowed - from.bells;
  const uint16_t unreturned = static_cast<uint16_t>(to.posted - from.allowed);
  return left + unreturned == to.window && to.owed == 0 && to.tail == from.tail &&
         to.head == to.tail && from.freed <= to.head && from.freed >= to.reported_head;
}
inline bool IsConserved(const stream::StreamState& one, const stream::StreamState& other) {
  return IsConserved(one.sender, other.receiver) && IsConserved(other.sender, one.receiver);
}

// An end on plain verbs, which sends `to_send` messages as fast as it has credit.
class StreamPeer {
 public:
  explicit StreamPeer(const verbs::testing::Fabric& fabric, uint32_t ring_bytes = kRingBytes,
                      uint64_t max_message_bytes = 0)
      : fabric_(fabric),
        mapped_bytes_(ring_bytes + kRingBytes),
        device_(Open(fabric, &receivers_not_ready_)) {
    void* mapped =
        mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BATON_CHECK(mapped != MAP_FAILED);
    memory_ = static_cast<uint8_t*>(mapped);
    region_ =
        device_->RegisterMemory(memory_, mapped_bytes_, verbs::kLocalWrite | verbs::kRemoteWrite)
            .value();
    queue_ = device_->CreateCompletionQueue(4 * kDepth).value();
    queue_pair_ = device_->CreateQueuePair({queue_.get(), queue_.get(), kDepth, kDepth, 1}).value();
    const stream::PeerStream::Memory memory = {memory_, ring_bytes, kRingBytes, region_->lkey(),
                                               region_->rkey()};
    stream_ = std::make_unique<stream::PeerStream>(
        queue_pair_.get(), memory,
        stream::PeerStream::Requests{kWindow, kDepth, max_message_bytes});
    EXPECT_EQ(stream_->Open(), absl::OkStatus());
  }
  ~StreamPeer() {
    id_.reset();
    listener_.reset();
    queue_pair_.reset();
    queue_.reset();
    region_.reset();
    device_.reset();
    munmap(memory_, mapped_bytes_);
  }

  void Connect(uint16_t port) {
    verbs::ConnectionParameters parameters;
    parameters.private_data = stream_->Greeting();
    parameters.rnr_retry_count = rnr_retry_count;
    id_ = device_->Connect({fabric_.host, port}, queue_pair_.get(), parameters).value();
  }
  uint16_t Listen() {
    listener_ = device_->Listen({fabric_.host, 0}, 8).value();
    return listener_->address().port;
  }
  void Disconnect() { id_->Disconnect().IgnoreError(); }
  [[nodiscard]] absl::Status Send(absl::Span<const uint8_t> message) {
    return stream_->Send(message);
  }
  // For messages that `on_message` has kept.
  void ReleaseKept() {
    for (const stream::PeerStream::Event& event : std::exchange(kept_events_, {})) {
      EXPECT_EQ(stream_->Release(event), absl::OkStatus());
    }
  }
  // A bell that belongs to no message.
  void RingWrongly() {
    verbs::SendRequest request;
    request.opcode = verbs::Opcode::kWriteWithImmediate;
    request.immediate = stream::Pack({stream::BellKind::kWrapped, 0, 0});
    request.remote_address = state().sender.remote_address;
    request.rkey = state().sender.rkey;
    size_t posted = 0;
    EXPECT_EQ(queue_pair_->PostSend({&request, 1}, &posted), absl::OkStatus());
  }

  void Progress() { device_->Progress(); }  // the device's part of a turn
  void Turn() {
    device_->Progress();
    was_not_ready |= receivers_not_ready_ > 0;
    verbs::CmEvent event;
    while (device_->NextEvent(&event)) OnEvent(std::exchange(event, {}));
    verbs::Completion completion;
    // The first bell may come before the event that has the peer's greeting.
    while (has_begun_ && queue_->Poll({&completion, 1}).value() == 1) OnCompletion(completion);
    if (established && !disconnected) SendMore();
  }

  const stream::StreamState& state() const { return stream_->state(); }

  uint8_t rnr_retry_count = 0;  // of the other end: its send fails if it finds no receive
  uint64_t to_send = 0;
  uint64_t sent = 0;
  uint64_t answers = 0;
  uint64_t kept = 0;  // it releases no message before it has so many
  // Takes messages instead of numbered answers. Returns false to keep one: see ReleaseKept.
  std::function<bool(absl::Span<const uint8_t> message)> on_message;
  bool established = false;
  bool rejected = false;
  bool disconnected = false;
  // A message of ours found no receive. On the soft device it may have been tried again, and have
  // succeeded. On another one that is seen by the device's own counters only, unless the other end
  // has forbidden it.
  bool was_not_ready = false;

 private:
  static std::unique_ptr<verbs::Device> Open(const verbs::testing::Fabric& fabric,
                                             uint64_t* receivers_not_ready) {
    if (fabric.device != "soft") return verbs::testing::OpenDevice(fabric).value();
    verbs::soft::SoftDeviceOptions options;
    options.receivers_not_ready = receivers_not_ready;
    return verbs::soft::CreateSoftDevice(options).value();
  }
  void OnEvent(verbs::CmEvent event) {
    switch (event.type) {
      case verbs::CmEventType::kConnectRequest: {
        id_ = std::move(event.new_id);
        Begin(event.private_data);
        verbs::ConnectionParameters parameters;
        parameters.private_data = stream_->Greeting();
        parameters.rnr_retry_count = rnr_retry_count;
        EXPECT_EQ(id_->Accept(queue_pair_.get(), parameters), absl::OkStatus());
        break;
      }
      case verbs::CmEventType::kEstablished:
        if (!listener_) Begin(event.private_data);
        established = true;
        break;
      case verbs::CmEventType::kRejected:
        rejected = true;
        break;
      default:
        disconnected = true;
    }
  }
  void Begin(const std::string& greeting) {
    EXPECT_EQ(stream_->Begin(greeting), absl::OkStatus());
    has_begun_ = true;
  }
  void OnCompletion(const verbs::Completion& completion) {
    if (completion.status != verbs::CompletionStatus::kSuccess) {
      was_not_ready |= completion.status == verbs::CompletionStatus::kRnrRetryExceeded;
      return;  // it has failed, and is told so
    }
    const auto event = stream_->OnCompletion(completion);
    ASSERT_TRUE(event.ok()) << event.status();
    if (event->kind != stream::PeerStream::Event::Kind::kMessage) return;
    if (on_message) {
      kept_events_.push_back(*event);
      if (on_message(event->message)) ReleaseKept();
      return;
    }
    const std::vector<uint8_t> message(event->message.begin(), event->message.end());
    EXPECT_EQ(message, MessageOf(answers, LengthOf(answers))) << "answer " << answers;
    ++answers;
    if (answers < kept) return;
    EXPECT_EQ(stream_->Release(*event), absl::OkStatus());
  }
  void SendMore() {
    while (sent < to_send) {
      const absl::Status status = stream_->Send(MessageOf(sent, LengthOf(sent)));
      if (absl::IsResourceExhausted(status)) return;
      ASSERT_EQ(status, absl::OkStatus());
      ++sent;
    }
  }

  const verbs::testing::Fabric fabric_;
  const uint32_t mapped_bytes_;
  uint64_t receivers_not_ready_ = 0;  // the device writes it
  std::unique_ptr<verbs::Device> device_;
  uint8_t* memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::Listener> listener_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::unique_ptr<stream::PeerStream> stream_;
  bool has_begun_ = false;
  std::vector<stream::PeerStream::Event> kept_events_;
};

}  // namespace baton::testing

#endif  // TESTS_LIB_STREAM_STREAM_PEER_H_
