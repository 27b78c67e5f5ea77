#include "lib/nic/responder.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace baton::verbs::soft {
namespace {

template <typename Body>
Body ReadBody(const uint8_t* body) {
  Body value;
  std::memcpy(&value, body, sizeof(value));
  return value;
}

}  // namespace

// Completes the receive at the head of the window, and removes it.
void Responder::CompleteReceive(const Completion& completion) {
  const bool fits = sink_->CompleteReceive(ring()[ring().head()], completion);
  ring().Pop();
  if (!fits) host_->Fail();  // as a NIC does when a CQ is overrun
}

void Responder::FailReceive(CompletionStatus status) {
  Completion completion;
  completion.opcode = CompletionOpcode::kReceive;
  completion.status = status;
  CompleteReceive(completion);
}

void Responder::Flush() {
  in_message_ = false;
  uint32_t waiting = source_->Waiting();
  do {
    while (!ring().empty()) FailReceive(CompletionStatus::kFlushError);
  } while (waiting-- > 0 && source_->Fetch());
}

// Answers are in order, so those behind a dropped one go too.
void Responder::DropReads() {
  for (size_t i = first_answer_; i < answers_.size(); ++i) {
    if (answers_[i].kind != Kind::kRead && answers_[i].kind != Kind::kAtomic) continue;
    const uint32_t sequence = answers_[i].sequence;
    answers_.resize(i);
    refused_ = false;
    Refuse(sequence);
    break;
  }
  reads_ = 0;
}

void Responder::Push(const Answer& answer) {
  if (first_answer_ == answers_.size()) {
    answers_.clear();
    first_answer_ = 0;
  } else if (first_answer_ >= 64) {
    answers_.erase(answers_.begin(), answers_.begin() + static_cast<ptrdiff_t>(first_answer_));
    first_answer_ = 0;
  }
  answers_.push_back(answer);
  host_->WantTransmit();
}

void Responder::Acknowledge(uint32_t sequence) {
  if (first_answer_ < answers_.size() && answers_.back().kind == Kind::kAck) {
    answers_.back().sequence = sequence;
    return;
  }
  Push({Kind::kAck, NakCode{}, sequence, 0, 0, 0, 0});
}

void Responder::Reject(uint32_t sequence, NakCode code) {
  discard_ = true;
  in_message_ = false;
  refused_ = true;
  Push({Kind::kNak, code, sequence, 0, 0, 0, 0});
  host_->Fail();
}

void Responder::RejectReceive(CompletionStatus status, NakCode code) {
  FailReceive(status);
  Reject(expected_, code);
}

void Responder::Refuse(uint32_t sequence) {
  discard_ = true;
  if (refused_) return;  // once is enough: the requester fails at the first
  refused_ = true;
  Push({Kind::kNak, NakCode::kQueuePairInError, sequence, 0, 0, 0, 0});
}

void Responder::NotReady(uint32_t sequence) {
  dropping_ = true;
  discard_ = true;
  in_message_ = false;
  Push({Kind::kReceiverNotReady, NakCode{}, sequence, 0, 0, 0, 0});
}

bool Responder::HasAnswer(Kind kind) const {
  return std::any_of(answers_.begin() + static_cast<ptrdiff_t>(first_answer_), answers_.end(),
                     [kind](const Answer& answer) { return answer.kind == kind; });
}

// Returns whether the segment is the one that must come next. Segments that an RNR answer made void
// are dropped. A peer that sends again before it can have that answer breaks the protocol.
bool Responder::InOrder(const FrameHeader& header) {
  const bool first = (header.flags & kFirst) != 0;
  if (dropping_) {
    if (first && header.sequence == expected_) {
      dropping_ = false;
      return !HasAnswer(Kind::kReceiverNotReady);
    }
    discard_ = true;
    return true;
  }
  return header.sequence == expected_ && first != in_message_ &&
         (first || header.type == current_.type);
}

bool Responder::OnRequest(const FrameHeader& header, const uint8_t* body) {
  discard_ = false;
  if (!InOrder(header)) return false;
  if (discard_) return true;
  if ((header.flags & kFirst) != 0) offset_ = 0;
  current_ = header;
  switch (static_cast<FrameType>(header.type)) {
    case FrameType::kSend:
      return OnSend(header, header.length);
    case FrameType::kWrite:
      return OnWrite(header, body, header.length - sizeof(WriteHead));
    case FrameType::kRead:
      return OnRead(header, body);
    default:
      return OnAtomic(header, body);
  }
}

bool Responder::OnSend(const FrameHeader& header, uint32_t size) {
  segment_size_ = size;
  if ((header.flags & kFirst) != 0 && !HasReceive()) {
    NotReady(header.sequence);
    return true;
  }
  in_message_ = true;
  const ReceiveWork& receive = ring()[ring().head()];
  if (receive.malformed) {
    RejectReceive(CompletionStatus::kLocalQpError, NakCode::kRemoteOperation);
  } else if (size > receive.length - offset_) {
    RejectReceive(CompletionStatus::kLocalLengthError, NakCode::kInvalidRequest);
  }
  return true;
}

bool Responder::OnWrite(const FrameHeader& header, const uint8_t* body, uint32_t size) {
  const auto head = ReadBody<WriteHead>(body);
  segment_size_ = size;
  if ((header.flags & kFirst) != 0) {
    if (head.message_length > kMaxMessage) {
      Reject(header.sequence, NakCode::kInvalidRequest);
      return true;
    }
    address_ = head.address;
    rkey_ = head.rkey;
    message_length_ = head.message_length;
  }
  const bool last = (header.flags & kLast) != 0;
  if (head.address != address_ + offset_ || head.rkey != rkey_ ||
      head.message_length != message_length_ || size > message_length_ - offset_ ||
      last != (offset_ + size == message_length_)) {
    return false;
  }
  in_message_ = true;
  if (!host_->memory().PermitsRemote(rkey_, address_, message_length_, kRemoteWrite)) {
    Reject(header.sequence, NakCode::kRemoteAccess);
  }
  return true;
}

bool Responder::OnRead(const FrameHeader& header, const uint8_t* body) {
  const auto head = ReadBody<ReadHead>(body);
  if ((header.flags & kLast) == 0) return false;
  if (reads_ >= resources_ || head.length > kMaxMessage) {
    Reject(header.sequence, NakCode::kInvalidRequest);
  } else if (!host_->memory().PermitsRemote(head.rkey, head.address, head.length, kRemoteRead)) {
    Reject(header.sequence, NakCode::kRemoteAccess);
  } else {
    ++reads_;
    ++expected_;
    Push({Kind::kRead, NakCode{}, header.sequence, head.rkey, head.address, head.length, 0});
  }
  return true;
}

bool Responder::OnAtomic(const FrameHeader& header, const uint8_t* body) {
  const auto head = ReadBody<AtomicHead>(body);
  if ((header.flags & kLast) == 0) return false;
  if (reads_ >= resources_ || head.address % sizeof(uint64_t) != 0) {
    Reject(header.sequence, NakCode::kInvalidRequest);
    return true;
  }
  uint8_t* const at =
      host_->memory().FindRemote(head.rkey, head.address, sizeof(uint64_t), kRemoteAtomic);
  if (at == nullptr) {
    Reject(header.sequence, NakCode::kRemoteAccess);
    return true;
  }
  if (reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) != 0) {
    Reject(header.sequence, NakCode::kInvalidRequest);
    return true;
  }
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(at));
  uint64_t before = head.compare_add;
  if (static_cast<FrameType>(header.type) == FrameType::kCompareAndSwap) {
    word.compare_exchange_strong(before, head.swap);  // on failure `before` is what is there
  } else {
    before = word.fetch_add(head.compare_add);
  }
  ++reads_;
  ++expected_;
  Push({Kind::kAtomic, NakCode{}, header.sequence, 0, before, 0, 0});
  return true;
}

int Responder::Place(uint32_t done, uint32_t length, iovec* iovecs, int max) {
  if (discard_) return 0;
  if (static_cast<FrameType>(current_.type) == FrameType::kWrite) {
    const uint64_t address = address_ + offset_ + done;
    // Looks the region up again, because it may have been deregistered since the frame began.
    uint8_t* const at = host_->memory().FindRemote(rkey_, address, length, kRemoteWrite);
    if (at == nullptr) {
      Reject(expected_, NakCode::kRemoteAccess);
      return 0;
    }
    iovecs[0] = {at, length};
    return 1;
  }
  const uint64_t head = ring().head();
  const int used = host_->memory().Gather(ring().sges(head), ring()[head].sge_count, offset_ + done,
                                          length, kLocalWrite, iovecs, max);
  if (used >= 0) return used;
  RejectReceive(CompletionStatus::kLocalProtectionError, NakCode::kRemoteOperation);
  return 0;
}

bool Responder::OnRequestEnd() {
  if (discard_ || !in_message_) return true;
  offset_ += segment_size_;
  if ((current_.flags & kLast) == 0) return true;
  in_message_ = false;
  if (static_cast<FrameType>(current_.type) == FrameType::kSend) {
    EndSend();
  } else {
    EndWrite();
  }
  return true;
}

void Responder::EndSend() {
  const bool invalidate = (current_.flags & kHasInvalidate) != 0;
  if (invalidate && !host_->memory().Invalidate(current_.immediate)) {
    return RejectReceive(CompletionStatus::kRemoteInvalidRequest, NakCode::kRemoteOperation);
  }
  Completion completion;
  completion.opcode = CompletionOpcode::kReceive;
  completion.byte_len = static_cast<uint32_t>(offset_);
  completion.has_immediate = (current_.flags & kHasImmediate) != 0;
  completion.has_invalidate = invalidate;
  completion.immediate = current_.immediate;
  CompleteReceive(completion);
  Acknowledge(expected_++);
}

void Responder::EndWrite() {
  if ((current_.flags & kHasImmediate) != 0) {
    if (!HasReceive()) return NotReady(expected_);
    if (ring()[ring().head()].malformed) {
      return RejectReceive(CompletionStatus::kLocalQpError, NakCode::kRemoteOperation);
    }
    Completion completion;
    completion.opcode = CompletionOpcode::kReceiveWithImmediate;
    completion.byte_len = static_cast<uint32_t>(offset_);
    completion.has_immediate = true;
    completion.immediate = current_.immediate;
    CompleteReceive(completion);
  }
  Acknowledge(expected_++);
}

void Responder::BuildRead(Answer* answer, OutFrame* frame) {
  const uint32_t size =
      static_cast<uint32_t>(std::min<uint64_t>(answer->length - answer->offset, kMaxSegment));
  uint8_t flags = answer->offset == 0 ? kFirst : 0;
  if (answer->offset + size == answer->length) flags |= kLast;
  frame->Begin(FrameType::kReadResponse, flags, answer->sequence);
  frame->source = size > 0 ? PayloadSource::kResponse : PayloadSource::kNone;
  frame->payload_size = size;
  frame->index = answer->address + answer->offset;
  frame->rkey = answer->rkey;
  answer->offset += size;
}

bool Responder::NextFrame(OutFrame* frame) {
  if (first_answer_ == answers_.size()) return false;
  Answer& answer = answers_[first_answer_];
  switch (answer.kind) {
    case Kind::kAck:
      frame->Begin(FrameType::kAck, 0, answer.sequence);
      break;
    case Kind::kNak:
      frame->Begin(FrameType::kNak, 0, answer.sequence);
      frame->header.code = static_cast<uint8_t>(answer.code);
      break;
    case Kind::kReceiverNotReady:
      frame->Begin(FrameType::kReceiverNotReady, 0, answer.sequence);
      frame->header.immediate = rnr_timer_us_;
      break;
    case Kind::kRead:
      BuildRead(&answer, frame);
      if ((frame->header.flags & kLast) == 0) return true;
      --reads_;
      break;
    case Kind::kAtomic:
      frame->Begin(FrameType::kAtomicResponse, kFirst | kLast, answer.sequence);
      frame->SetBody(answer.address);
      --reads_;
      break;
  }
  ++first_answer_;
  return true;
}

}  // namespace baton::verbs::soft
