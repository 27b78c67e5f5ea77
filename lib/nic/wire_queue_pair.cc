#include "lib/nic/wire_queue_pair.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace baton::verbs::soft {
namespace {

bool IsAnswer(const FrameHeader& header) {
  return header.type >= static_cast<uint8_t>(FrameType::kAck);
}

}  // namespace

QueuePairLink WireQueuePair::no_link_;

WireQueuePair::WireQueuePair(uint32_t number, QueuePairUser* user)
    : number_(number),
      user_(user),
      requester_(this, &user->sends(), &user->sink()),
      responder_(this, &user->receives(), &user->sink()) {}

WireQueuePair::~WireQueuePair() {
  state_ = QueuePairState::kError;
  link_->QueuePairGone();
}

void WireQueuePair::Posted() {
  if (state_ == QueuePairState::kError) {
    requester_.Flush();
    responder_.Flush();
  } else if (link_ != &no_link_) {
    link_->Posted();
    requester_.WatchPosted();
  }
}

void WireQueuePair::SetError() {
  responder_.DropReads();
  link_->KeepResponses();
  Fail();
}

absl::Status WireQueuePair::Bind(QueuePairLink* link) {
  const bool bound = link_ != &no_link_;
  if (state_ != QueuePairState::kInit || bound) {
    return absl::FailedPreconditionError(absl::StrCat(
        "queue pair ", number_, bound ? " has a connection" : " is not in INIT: make a new one"));
  }
  link_ = link;
  return absl::OkStatus();
}

void WireQueuePair::Activate(const Connection& connection) {
  if (state_ != QueuePairState::kInit) return;  // the user set it to the error state meanwhile
  requester_.Start(connection.requester);
  responder_.Start(connection.responder_resources, connection.rnr_timer_us);
  state_ = QueuePairState::kReadyToSend;
}

void WireQueuePair::Break() {
  Fail();
  Unbind();
}

void WireQueuePair::Fail() {
  if (state_ == QueuePairState::kError) return;
  state_ = QueuePairState::kError;
  link_->ReleaseRequests();
  user_->OnError();
  requester_.Flush();
  responder_.Flush();
}

bool WireQueuePair::NextFrame(OutFrame* frame) {
  if (responder_.NextFrame(frame)) return true;
  return state_ == QueuePairState::kReadyToSend && requester_.NextFrame(frame);
}

int WireQueuePair::GatherPayload(const OutFrame& frame, uint32_t skip, iovec* iovecs, int max) {
  const uint32_t length = frame.payload_size - skip;
  if (frame.source == PayloadSource::kRequest) {
    return requester_.Gather(frame.index, frame.offset + skip, length, iovecs, max);
  }
  uint8_t* const at =
      user_->memory().FindRemote(frame.rkey, frame.index + skip, length, kRemoteRead);
  if (at == nullptr) return -1;
  iovecs[0] = {at, length};
  return 1;
}

bool WireQueuePair::OnFrame(const FrameHeader& header, const uint8_t* body) {
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

bool WireQueuePair::OnAnswer(const FrameHeader& header, const uint8_t* body) {
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

int WireQueuePair::PayloadTarget(uint32_t done, uint32_t length, iovec* iovecs, int max) {
  if (state_ == QueuePairState::kError) return 0;
  return receiving_answer_ ? requester_.PlaceReadResponse(done, length, iovecs, max)
                           : responder_.Place(done, length, iovecs, max);
}

bool WireQueuePair::OnFrameEnd() {
  if (state_ == QueuePairState::kError) {
    if (!receiving_answer_) responder_.Refuse();
    return true;
  }
  if (!receiving_answer_) return responder_.OnRequestEnd();
  const bool fine = requester_.OnAnswerEnd();
  requester_.Settle();
  return fine;
}

void WireQueuePair::AfterTransmit(bool wrote) {
  if (state_ != QueuePairState::kReadyToSend) return;
  if (wrote) requester_.Touch();
  requester_.Settle();
}

}  // namespace baton::verbs::soft
