#include "lib/verbs/soft/queue_pair.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::verbs::soft {
namespace {

absl::Status TooMany(absl::string_view what, size_t count, uint32_t limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " with ", count, " scatter-gather entries; the queue pair was made for ", limit));
}

bool IsAnswer(const FrameHeader& header) {
  return header.type >= static_cast<uint8_t>(FrameType::kAck);
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
      number_(number),
      numbers_(numbers),
      send_queue_(static_cast<SoftCompletionQueue*>(options.send_queue)),
      receive_queue_(static_cast<SoftCompletionQueue*>(options.receive_queue)),
      sends_(options.max_send_requests, options.max_scatter_gather, options.max_inline_data),
      receives_(MakeReceives(options)),
      requester_(this, &sends_, this),
      responder_(this, &receives_, this) {}

SoftQueuePair::~SoftQueuePair() {
  state_ = QueuePairState::kError;
  if (link_ != nullptr) {
    link_->stream().DropRequests();
    link_->stream().Detach(PayloadSource::kRequest);
    link_->stream().Keep(PayloadSource::kResponse);
    link_->QueuePairGone();
  }
  engine_->ForgetLastWorkRequestOf(number_);
  numbers_->erase(number_);
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
  if (state_ == QueuePairState::kReadyToSend && !requester_.Allows(request.opcode)) {
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
  if (state_ != QueuePairState::kReadyToSend && state_ != QueuePairState::kError) {
    return absl::FailedPreconditionError("send posted before the queue pair is connected");
  }
  absl::Status status;
  for (const SendRequest& request : requests) {
    if (status = CheckSend(request); !status.ok()) break;
    if (state_ == QueuePairState::kError) {
      CompleteFlushed(send_queue_, request.wr_id, CompletionOpcode::kSend);
    } else {
      sends_.Post(request);
    }
    ++*posted;
  }
  if (*posted > 0 && link_ != nullptr) {
    link_->Posted();
    requester_.WatchPosted();
  }
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
    if (state_ == QueuePairState::kError) {
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
  responder_.DropReads();
  Fail();
  return absl::OkStatus();
}

absl::Status SoftQueuePair::Bind(QueuePairLink* link) {
  if (state_ != QueuePairState::kInit || link_ != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("queue pair ", number_,
                     link_ != nullptr ? " has a connection" : " is not in INIT: make a new one"));
  }
  link_ = link;
  return absl::OkStatus();
}

void SoftQueuePair::Activate(const Connection& connection) {
  if (state_ != QueuePairState::kInit) return;  // the user set it to the error state meanwhile
  requester_.Start(connection.requester);
  responder_.Start(connection.responder_resources, connection.rnr_timer_us);
  state_ = QueuePairState::kReadyToSend;
}

void SoftQueuePair::Break() {
  Fail();
  link_ = nullptr;
}

void SoftQueuePair::Fail() {
  if (state_ == QueuePairState::kError) return;
  state_ = QueuePairState::kError;
  if (link_ != nullptr) {
    link_->stream().DropRequests();
    link_->stream().Detach(PayloadSource::kRequest);
  }
  requester_.Flush();
  responder_.Flush();
  if (!receives_.shared()) return;
  DeviceEvent last;
  last.type = DeviceEventType::kLastWorkRequestReached;
  last.qp_number = number_;
  last.text = "last receive flushed";
  engine_->Tell(std::move(last));
}

bool SoftQueuePair::Complete(SoftCompletionQueue* queue, uint64_t wr_id, Completion completion) {
  completion.wr_id = wr_id;
  completion.qp_number = number_;
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

void SoftQueuePair::WantTransmit() {
  if (link_ != nullptr) link_->WantTransmit();
}

void SoftQueuePair::DropRequestFrames() {
  if (link_ != nullptr) link_->stream().DropRequests();
}

uint64_t SoftQueuePair::FirstUnwritten(uint64_t end) const {
  return link_ == nullptr ? end : link_->stream().FirstUnwritten(end);
}

void SoftQueuePair::Stall(uint64_t duration_us) {
  if (link_ != nullptr) link_->Stall(duration_us);
}

void SoftQueuePair::CutLink() {
  if (link_ != nullptr) link_->CutLink();
}

void SoftQueuePair::LoseDevice() {
  engine_->Tell(DeviceEventType::kDeviceLost, "the fault plan says so");
}

bool SoftQueuePair::NextFrame(OutFrame* frame) {
  if (responder_.NextFrame(frame)) return true;
  return state_ == QueuePairState::kReadyToSend && requester_.NextFrame(frame);
}

int SoftQueuePair::GatherPayload(const OutFrame& frame, uint32_t skip, iovec* iovecs, int max) {
  const uint32_t length = frame.payload_size - skip;
  if (frame.source == PayloadSource::kRequest) {
    return requester_.Gather(frame.index, frame.offset + skip, length, iovecs, max);
  }
  const uint64_t address = frame.index + skip;
  if (!memory_->RemoteAccess(frame.rkey, address, length, kRemoteRead)) return -1;
  iovecs[0] = {reinterpret_cast<void*>(address), length};
  return 1;
}

bool SoftQueuePair::OnFrame(const FrameHeader& header, const uint8_t* body) {
  receiving_answer_ = IsAnswer(header);
  if (receiving_answer_) {
    if (state_ == QueuePairState::kError) return true;
    const bool fine = OnAnswer(header, body);
    requester_.Settle();
    return fine;
  }
  if (state_ == QueuePairState::kError) {
    responder_.Refuse();
    return true;
  }
  return responder_.OnRequest(header, body);
}

bool SoftQueuePair::OnAnswer(const FrameHeader& header, const uint8_t* body) {
  switch (static_cast<FrameType>(header.type)) {
    case FrameType::kAck:
      return requester_.OnAck(header.sequence);
    case FrameType::kNak:
      return requester_.OnNak(header.sequence, static_cast<NakCode>(header.code));
    case FrameType::kReceiverNotReady:
      return requester_.OnReceiverNotReady(header.sequence, header.immediate);
    case FrameType::kReadResponse:
      return requester_.OnReadResponse(header);
    case FrameType::kAtomicResponse: {
      uint64_t value;
      std::memcpy(&value, body, sizeof(value));
      return requester_.OnAtomicResponse(header.sequence, value);
    }
    default:
      return false;
  }
}

int SoftQueuePair::PayloadTarget(uint32_t done, uint32_t length, iovec* iovecs, int max) {
  if (state_ == QueuePairState::kError) return 0;
  return receiving_answer_ ? requester_.PlaceReadResponse(done, length, iovecs, max)
                           : responder_.Place(done, length, iovecs, max);
}

bool SoftQueuePair::OnFrameEnd() {
  if (state_ == QueuePairState::kError) {
    if (!receiving_answer_) responder_.Refuse();
    return true;
  }
  if (!receiving_answer_) return responder_.OnRequestEnd();
  const bool fine = requester_.OnAnswerEnd();
  requester_.Settle();
  return fine;
}

void SoftQueuePair::AfterTransmit(bool wrote) {
  if (state_ != QueuePairState::kReadyToSend) return;
  if (wrote) requester_.Touch();
  requester_.Settle();
}

}  // namespace baton::verbs::soft
