#include "lib/verbs/soft/queue_pair.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::verbs::soft {
namespace {

absl::Status TooMany(absl::string_view what, size_t count, uint32_t limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " with ", count, " scatter-gather entries; the queue pair was made for ", limit));
}

PostedReceives MakeReceives(const QueuePairOptions& options) {
  if (options.shared_receive_queue != nullptr) {
    return PostedReceives(static_cast<SoftSharedReceiveQueue*>(options.shared_receive_queue));
  }
  return PostedReceives(options.max_receive_requests, options.max_scatter_gather);
}

}  // namespace

SoftQueuePair::SoftQueuePair(Engine* engine, MemoryTable* memory, uint32_t number,
                             const QueuePairOptions& options, QueuePairNumbers* numbers)
    : engine_(engine),
      memory_(memory),
      numbers_(numbers),
      send_queue_(static_cast<SoftCompletionQueue*>(options.send_queue)),
      receive_queue_(static_cast<SoftCompletionQueue*>(options.receive_queue)),
      sends_(options.max_send_requests, options.max_scatter_gather, options.max_inline_data),
      receives_(MakeReceives(options)),
      wire_(number, this) {}

SoftQueuePair::~SoftQueuePair() {
  engine_->ForgetLastWorkRequestOf(number());
  numbers_->erase(number());
}

absl::Status SoftQueuePair::CheckSend(const SendRequest& request) const {
  if (request.sges.size() > sends_.window().max_sges()) {
    return TooMany(OpcodeName(request.opcode).data(), request.sges.size(),
                   sends_.window().max_sges());
  }
  if (static_cast<uint8_t>(request.opcode) >= kOpcodeCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown opcode ", static_cast<int>(request.opcode)));
  }
  if (request.inline_data) {
    BATON_RETURN_IF_ERROR(CheckInline(request, max_inline_data()));
  }
  if (state() == QueuePairState::kReadyToSend && !wire_.Allows(request.opcode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(OpcodeName(request.opcode)),
        ": the peer answers no READs and atomics (its responder_resources, or our initiator_depth, "
        "is 0)"));
  }
  if (sends_.window().full()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("send queue full: ", sends_.window().limit(), " requests are outstanding"));
  }
  return absl::OkStatus();
}

absl::Status SoftQueuePair::PostSend(absl::Span<const SendRequest> requests, size_t* posted) {
  *posted = 0;
  if (state() != QueuePairState::kReadyToSend && state() != QueuePairState::kError) {
    return absl::FailedPreconditionError("send posted before the queue pair is connected");
  }
  absl::Status status;
  for (const SendRequest& request : requests) {
    if (status = CheckSend(request); !status.ok()) break;
    if (state() == QueuePairState::kError) {
      CompleteFlushed(send_queue_, request.wr_id, CompletionOpcode::kSend);
    } else {
      sends_.Post(request);
    }
    ++*posted;
  }
  if (*posted > 0) wire_.Posted();
  return status;
}

absl::Status SoftQueuePair::PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) {
  *posted = 0;
  if (receives_.shared()) {
    return absl::FailedPreconditionError(
        "the queue pair takes its receives from a shared queue: post them there");
  }
  for (const ReceiveRequest& request : requests) {
    if (request.sges.size() > receives_.window().max_sges()) {
      return TooMany("receive", request.sges.size(), receives_.window().max_sges());
    }
    if (state() == QueuePairState::kError) {
      CompleteFlushed(receive_queue_, request.wr_id, CompletionOpcode::kReceive);
    } else if (receives_.window().full()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "receive queue full: ", receives_.window().limit(), " requests are outstanding"));
    } else {
      receives_.Post(request);
    }
    ++*posted;
  }
  return absl::OkStatus();
}

absl::Status SoftQueuePair::SetError() {
  wire_.SetError();
  return absl::OkStatus();
}

void SoftQueuePair::OnError() {
  if (!receives_.shared()) return;
  DeviceEvent last;
  last.type = DeviceEventType::kLastWorkRequestReached;
  last.qp_number = number();
  last.text = "last receive flushed";
  engine_->Tell(std::move(last));
}

bool SoftQueuePair::Complete(SoftCompletionQueue* queue, uint64_t wr_id, Completion completion) {
  completion.wr_id = wr_id;
  completion.qp_number = number();
  return queue->Push(completion);
}

bool SoftQueuePair::CompleteSend(const SendWork& work, const Completion& completion) {
  return Complete(send_queue_, work.id, completion);
}

bool SoftQueuePair::CompleteReceive(const ReceiveWork& work, const Completion& completion) {
  return Complete(receive_queue_, work.id, completion);
}

// A request that was posted in the error state. A full queue changes nothing any more.
void SoftQueuePair::CompleteFlushed(SoftCompletionQueue* queue, uint64_t wr_id,
                                    CompletionOpcode opcode) {
  Completion flushed;
  flushed.opcode = opcode;
  flushed.status = CompletionStatus::kFlushError;
  Complete(queue, wr_id, flushed);
}

}  // namespace baton::verbs::soft
