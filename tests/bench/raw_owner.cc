#include "tests/bench/raw_owner.h"

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/bench/polling_wait.h"

namespace baton::bench {

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
