// pour: a peer of stream.cc, without Baton. Streams messages of all lengths, and checks each
// answer.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/stream/peer_stream.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::guide {
namespace {

constexpr uint32_t kRingBytes = 1 << 16, kStagingBytes = 1 << 20;
constexpr uint16_t kWindow = 32;
constexpr uint32_t kSends = 64;

class Pour {
 public:
  absl::Status Open(const verbs::Address& address) {
    BATON_ASSIGN_OR_RETURN(device_, examples::OpenDevice("soft"));
    BATON_ASSIGN_OR_RETURN(auto memory,
                           examples::SharedMemory::Allocate(kRingBytes + kStagingBytes));
    memory_ = std::make_unique<examples::SharedMemory>(std::move(memory));
    BATON_ASSIGN_OR_RETURN(region_,
                           device_->RegisterMemory(memory_->base(), memory_->bytes(),
                                                   verbs::kLocalWrite | verbs::kRemoteWrite));
    BATON_ASSIGN_OR_RETURN(queue_, device_->CreateCompletionQueue(kWindow + kSends));
    verbs::QueuePairOptions options;
    options.send_queue = options.receive_queue = queue_.get();
    options.max_send_requests = kSends;
    options.max_receive_requests = kWindow;
    BATON_ASSIGN_OR_RETURN(queue_pair_, device_->CreateQueuePair(options));
    const stream::PeerStream::Memory parts = {memory_->base(), kRingBytes, kStagingBytes,
                                              region_->lkey(), region_->rkey()};
    stream_ = std::make_unique<stream::PeerStream>(
        queue_pair_.get(), parts,
        stream::PeerStream::Requests{kWindow, kSends, device_->limits().max_message_bytes});
    BATON_RETURN_IF_ERROR(stream_->Open());
    verbs::ConnectionParameters parameters;
    parameters.private_data = stream_->Greeting();
    BATON_ASSIGN_OR_RETURN(id_, device_->Connect(address, queue_pair_.get(), parameters));
    return absl::OkStatus();
  }

  // Sends `messages`, and returns when all are answered.
  absl::Status Run(uint64_t messages) {
    while (answers_ < messages) {
      device_->Progress();
      BATON_RETURN_IF_ERROR(TakeEvents());
      if (established_) BATON_RETURN_IF_ERROR(TakeCompletions());
      while (established_ && sent_ < messages) {
        const std::vector<uint8_t> message(LengthOf(sent_));
        const absl::Status status = stream_->Send(message);
        if (absl::IsResourceExhausted(status)) break;
        BATON_RETURN_IF_ERROR(status);
        ++sent_;
        sent_bytes_ += message.size();
      }
      std::this_thread::yield();
    }
    std::cout << answers_ << " messages with " << bytes_ << " bytes, all counted" << std::endl;
    return absl::OkStatus();
  }

 private:
  static uint32_t LengthOf(uint64_t number) {
    return static_cast<uint32_t>(number * 7919 % (number % 16 == 0 ? kStagingBytes : 4096));
  }

  absl::Status TakeEvents() {
    verbs::CmEvent event;
    while (device_->NextEvent(&event)) {
      if (event.type != verbs::CmEventType::kEstablished) {
        return absl::UnavailableError("the connection has ended");
      }
      BATON_RETURN_IF_ERROR(stream_->Begin(event.private_data));
      established_ = true;
    }
    return absl::OkStatus();
  }

  absl::Status TakeCompletions() {
    std::array<verbs::Completion, 16> completions;
    BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(completions)));
    for (int i = 0; i < count; ++i) {
      BATON_ASSIGN_OR_RETURN(const stream::PeerStream::Event event,
                             stream_->OnCompletion(completions[i]));
      if (event.kind != stream::PeerStream::Event::Kind::kMessage) continue;
      BATON_RETURN_IF_ERROR(TakeAnswer(event.message));
      BATON_RETURN_IF_ERROR(stream_->Release(event));
    }
    return absl::OkStatus();
  }

  // The service may have counted more by the time that it had credit for an answer.
  absl::Status TakeAnswer(absl::Span<const uint8_t> message) {
    uint64_t total = 0;
    std::memcpy(&total, message.data(), std::min(message.size(), sizeof(total)));
    bytes_ += LengthOf(answers_++);
    if (total >= bytes_ && total <= sent_bytes_) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("answer ", answers_, " is ", total, ", not ", bytes_, " to ", sent_bytes_));
  }

  std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<examples::SharedMemory> memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::unique_ptr<stream::PeerStream> stream_;
  bool established_ = false;
  uint64_t sent_ = 0, sent_bytes_ = 0;
  uint64_t answers_ = 0, bytes_ = 0;  // of the messages that they answer
};

absl::Status Run(const char* where, uint64_t messages) {
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(where));
  Pour pour;
  BATON_RETURN_IF_ERROR(pour.Open(address));
  return pour.Run(messages);
}

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: pour HOST:PORT MESSAGES\n";
    return 2;
  }
  const absl::Status status = baton::guide::Run(argv[1], std::strtoull(argv[2], nullptr, 10));
  if (!status.ok()) std::cerr << "error: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
