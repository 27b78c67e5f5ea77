#include "tests/bench/raw_owner.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/bench/queue_owner.h"

namespace baton::bench {

absl::StatusOr<std::unique_ptr<EchoQueues>> EchoQueues::Make(verbs::Device* device) {
  std::unique_ptr<EchoQueues> queues(new EchoQueues());
  BATON_RETURN_IF_ERROR(queues->Open(device));
  return queues;
}

absl::Status EchoQueues::Open(verbs::Device* device) {
  BATON_RETURN_IF_ERROR(device->NameMemory(memory_.begin(), memory_.bytes(), memory_.fd()));
  BATON_ASSIGN_OR_RETURN(
      region_, device->RegisterMemory(memory_.begin(), memory_.bytes(), verbs::kLocalWrite));
  BATON_ASSIGN_OR_RETURN(completions_, device->CreateCompletionQueue(2 * kEchoDepth));
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = completions_.get();
  options.max_send_requests = options.max_receive_requests = kEchoDepth;
  BATON_ASSIGN_OR_RETURN(queue_pair_, device->CreateQueuePair(options));
  for (uint32_t i = 0; i < kEchoDepth; ++i) {
    receive_buffers_[i] = send_buffers_[i] = {0, kEchoBytes, region_->lkey()};
    receives_[i].sges = {&receive_buffers_[i], 1};
    sends_[i].sges = {&send_buffers_[i], 1};
  }
  for (uint32_t i = 0; i < kEchoDepth; ++i) Receive();
  return Flush();
}

absl::Status EchoQueues::Flush() {
  size_t posted = 0;
  if (receive_count_ > 0) {
    BATON_RETURN_IF_ERROR(queue_pair_->PostReceive({receives_.data(), receive_count_}, &posted));
    receive_count_ = 0;
  }
  if (send_count_ > 0) {
    BATON_RETURN_IF_ERROR(queue_pair_->PostSend({sends_.data(), send_count_}, &posted));
    send_count_ = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const verbs::Completion>> EchoQueues::Poll() {
  BATON_ASSIGN_OR_RETURN(const int count, completions_->Poll(absl::MakeSpan(taken_)));
  const absl::Span<const verbs::Completion> taken(taken_.data(), static_cast<size_t>(count));
  for (const verbs::Completion& one : taken) {
    if (one.status == verbs::CompletionStatus::kSuccess) continue;
    return absl::InternalError(
        absl::StrCat("a request failed: ", std::string(verbs::CompletionStatusName(one.status))));
  }
  return taken;
}

absl::StatusOr<std::unique_ptr<RawOwner>> RawOwner::Start(std::unique_ptr<verbs::Device> device) {
  std::unique_ptr<RawOwner> owner(new RawOwner(std::move(device)));
  BATON_ASSIGN_OR_RETURN(owner->queues_, EchoQueues::Make(owner->device_.get()));
  BATON_ASSIGN_OR_RETURN(owner->listener_, owner->device_->Listen({"127.0.0.1", 0}, 1));
  return owner;
}

absl::Status RawOwner::Establish() {
  device_->Progress();
  verbs::CmEvent event;
  if (!device_->NextEvent(&event)) return absl::OkStatus();
  switch (event.type) {
    case verbs::CmEventType::kConnectRequest:
      id_ = std::move(event.new_id);
      return id_->Accept(queues_->queue_pair(), {});
    case verbs::CmEventType::kEstablished:
      established_ = true;
      return absl::OkStatus();
    default:
      return absl::UnavailableError(absl::StrCat("not established: ", event.status.message()));
  }
}

absl::StatusOr<int> RawOwner::Turn() {
  absl::Span<const verbs::Completion> taken = std::exchange(taken_, {});
  if (taken.empty()) {
    BATON_ASSIGN_OR_RETURN(taken, queues_->Poll());
    if (taken.empty()) return 0;
  }
  for (const verbs::Completion& one : taken) {
    if (one.opcode == verbs::CompletionOpcode::kSend) {
      ++answered_;
      continue;
    }
    ++received_;
    queues_->Receive();
    queues_->Send(EchoQueues::BufferOf(one));
  }
  BATON_RETURN_IF_ERROR(queues_->Flush());
  return static_cast<int>(taken.size());
}

absl::Status RawOwner::Wait() {
  return PollingWait([this]() -> absl::StatusOr<bool> {
    BATON_ASSIGN_OR_RETURN(taken_, queues_->Poll());
    return !taken_.empty();
  });
}

}  // namespace baton::bench
