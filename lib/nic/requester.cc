#include "lib/nic/requester.h"

#include <algorithm>
#include <cstring>

namespace baton::verbs::soft {
namespace {

constexpr uint64_t kMaxRnrTimerUs = 655'360;  // the longest that InfiniBand can encode
constexpr uint64_t kGraceNs = 100'000'000;

CompletionStatus StatusOf(NakCode code) {
  switch (code) {
    case NakCode::kInvalidRequest:
      return CompletionStatus::kRemoteInvalidRequest;
    case NakCode::kRemoteAccess:
      return CompletionStatus::kRemoteAccessError;
    case NakCode::kRemoteOperation:
      return CompletionStatus::kRemoteOperationError;
    case NakCode::kQueuePairInError:
      return CompletionStatus::kRetryExceeded;
  }
  return CompletionStatus::kBadResponse;
}

}  // namespace

Requester::Requester(WorkHost* host, SendSource* source, CompletionSink* sink)
    : host_(host), source_(source), sink_(sink) {
  wait_timer_.context = this;
  wait_timer_.fire = [](void* self) {
    static_cast<Requester*>(self)->waiting_ = false;
    static_cast<Requester*>(self)->host_->WantTransmit();
  };
  peer_timer_.context = this;
  peer_timer_.fire = [](void* self) { static_cast<Requester*>(self)->OnPeerTimer(); };
}

Requester::~Requester() {
  host_->loop().Cancel(&wait_timer_);
  host_->loop().Cancel(&peer_timer_);
}

bool Requester::Allows(Opcode opcode) const {
  return parameters_.initiator_depth > 0 || !IsAnswered(opcode);
}

bool Requester::MayStart(const SendWork& work) const {
  if (unanswered_ == 0) return true;
  return !work.fence && !(IsAnswered(work.opcode) && unanswered_ >= parameters_.initiator_depth);
}

// Returns true if the message goes on as usual.
bool Requester::DrawFault(SendWork* work) {
  if (work->drawn || !parameters_.faults.active()) return true;
  work->drawn = true;
  const FaultDecision fault = parameters_.faults.Next();
  switch (fault.kind) {
    case FaultKind::kNone:
      return true;
    case FaultKind::kDelay:
      Wait(fault.duration_us);
      return false;
    case FaultKind::kStall:
      host_->Stall(fault.duration_us);
      return false;
    case FaultKind::kRnr:
      RetryLater(next_, fault.duration_us > 0 ? fault.duration_us : parameters_.rnr_timer_us);
      return false;
    case FaultKind::kCut:
      host_->CutLink();
      return false;
    case FaultKind::kLost:
      host_->LoseDevice();
      return true;
    case FaultKind::kRetry:
      Halt(next_, CompletionStatus::kRetryExceeded);
      if (fault.duration_us > 0) Wait(fault.duration_us);
      return false;
    case FaultKind::kError:
      Halt(next_, fault.status);
      if (fault.duration_us > 0) Wait(fault.duration_us);
      return false;
  }
  return true;
}

CompletionStatus Requester::CheckLocal(const SendWork& work) const {
  if (work.malformed || !Allows(work.opcode)) return CompletionStatus::kLocalQpError;
  if (work.length > kMaxMessage || (IsAtomic(work.opcode) && work.length != sizeof(uint64_t))) {
    return CompletionStatus::kLocalLengthError;
  }
  const uint32_t access = IsAnswered(work.opcode) ? static_cast<uint32_t>(kLocalWrite) : 0;
  const ScatterGather* sges = ring().sges(next_);
  for (size_t i = 0; i < work.sge_count; ++i) {
    if (!host_->memory().PermitsLocal(sges[i].lkey, sges[i].address, sges[i].length, access)) {
      return CompletionStatus::kLocalProtectionError;
    }
  }
  return CompletionStatus::kSuccess;
}

bool Requester::Start(SendWork* work) {
  if (!MayStart(*work) || !DrawFault(work)) return false;
  const CompletionStatus status = CheckLocal(*work);
  if (status != CompletionStatus::kSuccess) {
    Halt(next_, status);
    return false;
  }
  if (next_ == ring().head()) Touch();
  WatchPeer();
  started_ = true;
  sent_ = 0;
  return true;
}

// If the window is full, the next request is fetched when one in the window completes.
bool Requester::Fetch() {
  if (!ring().full()) return source_->Fetch();
  held_ = source_->Waiting() > 0;
  return false;
}

bool Requester::NextFrame(OutFrame* frame) {
  if (waiting_ || (halted_ && next_ == halt_index_)) return false;
  if (next_ == ring().tail() && !Fetch()) return false;
  SendWork& work = ring()[next_];
  if (!started_ && !Start(&work)) return false;
  if (work.opcode == Opcode::kRead) {
    BuildRead(work, frame);
  } else if (IsAtomic(work.opcode)) {
    BuildAtomic(work, frame);
  } else {
    BuildSegment(work, frame);
  }
  frame->index = next_;
  if ((frame->header.flags & kLast) != 0) {
    if (IsAnswered(work.opcode)) ++unanswered_;
    ++next_;
    started_ = false;
  }
  return true;
}

void Requester::BuildSegment(const SendWork& work, OutFrame* frame) {
  const bool write = work.opcode == Opcode::kWrite || work.opcode == Opcode::kWriteWithImmediate;
  const bool immediate =
      work.opcode == Opcode::kSendWithImmediate || work.opcode == Opcode::kWriteWithImmediate;
  const uint32_t size = static_cast<uint32_t>(std::min<uint64_t>(work.length - sent_, kMaxSegment));
  uint8_t flags = 0;
  if (sent_ == 0) flags |= kFirst;
  if (sent_ + size == work.length) flags |= kLast;
  if (immediate) flags |= kHasImmediate;
  if (work.opcode == Opcode::kSendWithInvalidate) flags |= kHasInvalidate;
  if (work.solicited) flags |= kSolicited;
  *frame =
      OutFrame(write ? FrameType::kWrite : FrameType::kSend, flags, static_cast<uint32_t>(next_));
  frame->header.immediate = work.immediate;
  if (write) frame->SetBody(WriteHead{work.remote_address + sent_, work.rkey, 0, work.length});
  frame->source = size > 0 ? PayloadSource::kRequest : PayloadSource::kNone;
  frame->payload_size = size;
  frame->offset = sent_;
  sent_ += size;
}

void Requester::BuildRead(const SendWork& work, OutFrame* frame) {
  frame->Begin(FrameType::kRead, kFirst | kLast, static_cast<uint32_t>(next_));
  frame->SetBody(ReadHead{work.remote_address, work.rkey, static_cast<uint32_t>(work.length)});
}

void Requester::BuildAtomic(const SendWork& work, OutFrame* frame) {
  const bool swap = work.opcode == Opcode::kCompareAndSwap;
  frame->Begin(swap ? FrameType::kCompareAndSwap : FrameType::kFetchAndAdd, kFirst | kLast,
               static_cast<uint32_t>(next_));
  frame->SetBody(AtomicHead{work.remote_address, work.rkey, 0, work.compare_add, work.swap});
}

int Requester::Gather(uint64_t index, uint64_t offset, uint64_t length, iovec* iovecs, int max) {
  const SendWork& work = ring()[index];
  if (work.inline_data) {
    iovecs[0] = {ring().inline_data(index) + offset, length};
    return 1;
  }
  return host_->memory().Gather(ring().sges(index), work.sge_count, offset, length, 0, iovecs, max);
}

// The request at `index` fails when its turn has come. One before it may still wait for the peer,
// and fail first.
void Requester::Halt(uint64_t index, CompletionStatus status) {
  halted_ = true;
  halt_index_ = index;
  halt_status_ = status;
}

void Requester::Settle() {
  if (halted_ && !waiting_ && ring().head() == halt_index_) FailHead(halt_status_);
}

void Requester::Wait(uint64_t delay_us) {
  waiting_ = true;
  host_->loop().Arm(&wait_timer_, delay_us * 1000);
}

void Requester::RetryLater(uint64_t index, uint64_t delay_us) {
  next_ = index;
  started_ = false;
  SendWork& work = ring()[index];
  if (parameters_.rnr_retry_count < 7 && work.rnr_tries >= parameters_.rnr_retry_count) {
    return Halt(index, CompletionStatus::kRnrRetryExceeded);
  }
  if (work.rnr_tries < 7) ++work.rnr_tries;
  Wait(delay_us);
}

// Returns the index of an outstanding request that was transmitted, at least in part. The ring's
// tail: there is none.
uint64_t Requester::IndexOf(uint32_t sequence) const {
  const uint64_t index = ring().head() + (sequence - static_cast<uint32_t>(ring().head()));
  return index < started_end() ? index : ring().tail();
}

void Requester::CompleteHead(CompletionStatus status, uint32_t byte_len) {
  const SendWork& work = ring()[ring().head()];
  Completion completion;
  completion.status = status;
  completion.byte_len = byte_len;
  const bool fits = sink_->CompleteSend(work, completion);
  ring().Pop();
  if (held_) {
    held_ = false;
    host_->WantTransmit();
  }
  if (!fits) host_->Fail();  // as a NIC does when a CQ is overrun
}

void Requester::FailHead(CompletionStatus status) {
  if (next_ == ring().head()) {  // its transmission ends here
    ++next_;
    started_ = false;
  }
  CompleteHead(status, 0);
  host_->Fail();
}

// An answer also acknowledges the requests before its own, except READs and atomics. If the
// completion queue is full, the queue pair fails on the way, and the head passes `end`.
bool Requester::CompleteUpTo(uint64_t end) {
  while (ring().head() < end) {
    if (IsAnswered(ring()[ring().head()].opcode)) {
      FailHead(CompletionStatus::kBadResponse);
      return false;
    }
    CompleteHead(CompletionStatus::kSuccess, 0);
  }
  return true;
}

bool Requester::OnAck(uint32_t sequence) {
  const uint64_t index = IndexOf(sequence);
  if (index >= transmitted_end()) return false;
  Touch();
  return CompleteUpTo(index + 1);
}

// The peer may have failed since it answered "receiver not ready" to the head.
bool Requester::OnNak(uint32_t sequence, NakCode code) {
  const bool again = AwaitsRetry() && sequence == static_cast<uint32_t>(ring().head());
  const uint64_t index = again ? ring().head() : IndexOf(sequence);
  if (index > transmitted_end() || index == ring().tail()) return false;
  if (!CompleteUpTo(index)) return false;
  if (ring().head() == index) FailHead(StatusOf(code));
  return true;
}

bool Requester::OnReceiverNotReady(uint32_t sequence, uint32_t timer_us) {
  const uint64_t index = IndexOf(sequence);
  if (index > transmitted_end() || index == ring().tail() || IsAnswered(ring()[index].opcode)) {
    return false;
  }
  if (parameters_.receivers_not_ready != nullptr) ++*parameters_.receivers_not_ready;
  Touch();
  if (!CompleteUpTo(index)) return false;
  if (ring().head() != index) return true;
  unanswered_ = 0;  // those before it are answered, those after it start again
  host_->DropRequestFrames();
  RetryLater(index, std::min<uint64_t>(timer_us, kMaxRnrTimerUs));
  return true;
}

bool Requester::OnReadResponse(const FrameHeader& header) {
  const uint64_t index = IndexOf(header.sequence);
  if (index >= transmitted_end() || ring()[index].opcode != Opcode::kRead) return false;
  if (!CompleteUpTo(index)) return false;
  if (ring().head() != index) return true;
  Touch();
  const uint64_t end = read_offset_ + header.length;
  read_last_ = (header.flags & kLast) != 0;
  read_segment_ = header.length;
  reading_ = true;
  const bool first = (header.flags & kFirst) != 0;
  return first == (read_offset_ == 0) && end <= ring()[index].length &&
         read_last_ == (end == ring()[index].length);
}

int Requester::PlaceReadResponse(uint32_t done, uint32_t length, iovec* iovecs, int max) {
  const SendWork& work = ring()[ring().head()];
  const int used = host_->memory().Gather(ring().sges(ring().head()), work.sge_count,
                                          read_offset_ + done, length, kLocalWrite, iovecs, max);
  if (used >= 0) return used;
  FailHead(CompletionStatus::kLocalProtectionError);
  return 0;
}

bool Requester::OnAnswerEnd() {
  if (!reading_) return true;
  reading_ = false;
  read_offset_ += read_segment_;
  if (!read_last_) return true;
  const uint32_t length = static_cast<uint32_t>(read_offset_);
  read_offset_ = 0;
  --unanswered_;
  CompleteHead(CompletionStatus::kSuccess, length);
  host_->WantTransmit();  // a fence or the initiator depth may have waited for it
  return true;
}

bool Requester::OnAtomicResponse(uint32_t sequence, uint64_t value) {
  const uint64_t index = IndexOf(sequence);
  if (index >= transmitted_end() || !IsAtomic(ring()[index].opcode)) return false;
  if (!CompleteUpTo(index)) return false;
  if (ring().head() != index) return true;
  Touch();
  iovec target[kMaxScatterGather];
  const int used = host_->memory().Gather(ring().sges(index), ring()[index].sge_count, 0,
                                          sizeof(value), kLocalWrite, target, kMaxScatterGather);
  if (used < 0) {
    FailHead(CompletionStatus::kLocalProtectionError);
    return true;
  }
  const uint8_t* from = reinterpret_cast<const uint8_t*>(&value);
  for (int i = 0; i < used; from += target[i++].iov_len) {
    std::memcpy(target[i].iov_base, from, target[i].iov_len);
  }
  --unanswered_;
  CompleteHead(CompletionStatus::kSuccess, sizeof(value));
  host_->WantTransmit();
  return true;
}

void Requester::Flush() {
  held_ = false;
  uint32_t waiting = source_->Waiting();
  do {
    while (!ring().empty()) CompleteHead(CompletionStatus::kFlushError, 0);
  } while (waiting-- > 0 && source_->Fetch());
  next_ = ring().tail();
  started_ = waiting_ = halted_ = false;
  unanswered_ = 0;
  read_offset_ = 0;
  reading_ = false;
  host_->loop().Cancel(&wait_timer_);
  host_->loop().Cancel(&peer_timer_);
}

void Requester::Touch() {
  life_ns_ = host_->loop().now();
  suspect_ = false;
}

void Requester::WatchPosted() {
  if (peer_timer_.armed() || !HasRequest()) return;
  if (ring().head() == started_end()) Touch();
  WatchPeer();
}

void Requester::WatchPeer() {
  if (parameters_.ack_timeout_ns == 0 || peer_timer_.armed()) return;
  host_->loop().Arm(&peer_timer_, parameters_.ack_timeout_ns * (parameters_.retry_count + 1));
}

// A request that was not begun waits for a socket that the peer does not read, or for a delay on
// this side. Only the former counts as the peer's silence.
void Requester::OnPeerTimer() {
  if (ring().empty()) {
    if (!source_->Fetch()) return;  // the next request arms it again
    // The client has queued the request, and was stopped or killed before it rang.
    Touch();
    host_->WantTransmit();
  }
  const uint64_t allowed = parameters_.ack_timeout_ns * (parameters_.retry_count + 1);
  const bool ours = waiting_ || host_->stalled();
  if (ours && ring().head() == started_end()) return host_->loop().Arm(&peer_timer_, allowed);
  const uint64_t silent = host_->loop().now() - life_ns_;
  if (silent < allowed) {
    host_->loop().Arm(&peer_timer_, allowed - silent);
  } else if (!suspect_) {
    suspect_ = true;
    host_->loop().Arm(&peer_timer_, kGraceNs);
  } else {
    FailHead(CompletionStatus::kRetryExceeded);
  }
}

}  // namespace baton::verbs::soft
