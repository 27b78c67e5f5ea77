#include "lib/stream/peer_stream.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::stream {
namespace {

using Refusal = StreamEnd::Refusal;

// The others are the staged bytes up to the end of what the request sends.
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
// The last send is for reports.
constexpr uint32_t kSendsForMessage = 2;

absl::Status Wrong(std::string_view what) { return absl::InvalidArgumentError(View(what)); }

}  // namespace

absl::Status PeerStream::Open() {
  const uint32_t ring = memory_.ring_bytes;
  if (ring < kMinRingBytes || ring > kMaxRingBytes || ring % kUnitBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("ring_bytes: ", ring, ": choose a multiple of ",
                                                   kUnitBytes, " from ", kMinRingBytes, " to ",
                                                   kMaxRingBytes));
  }
  if (requests_.window < kMinWindow || requests_.window > kMaxWindow) {
    return absl::InvalidArgumentError(
        absl::StrCat("window: ", requests_.window, ": choose ", kMinWindow, " to ", kMaxWindow));
  }
  if (requests_.sends < kSendsForMessage) return Wrong("sends: choose 2 or more");
  if (memory_.staging_bytes == 0) return Wrong("staging_bytes: 0");
  for (uint32_t i = 0; i < requests_.window; ++i) BATON_RETURN_IF_ERROR(PostReceive());
  return absl::OkStatus();
}

std::string PeerStream::Greeting() const {
  return Encode({kGreetingMagic, kStreamVersion, requests_.window, memory_.ring_bytes, memory_.rkey,
                 reinterpret_cast<uint64_t>(memory_.base)});
}

absl::Status PeerStream::Begin(std::string_view private_data) {
  const std::optional<stream::Greeting> peer = DecodeGreeting(private_data);
  if (!peer) return Wrong("private data: it does not begin with a stream's greeting");
  end_ = StreamEnd::Begin(*peer, memory_.ring_bytes, requests_.window, requests_.window);
  while (end_->owed() > 0) end_->NotePosted();  // by Open
  return absl::OkStatus();
}

absl::Status PeerStream::PostReceive() {
  verbs::ReceiveRequest request;
  request.wr_id = kReceiveBit;
  size_t posted = 0;
  return queue_pair_->PostReceive({&request, 1}, &posted);
}

absl::Status PeerStream::PostOwed() {
  while (end_->owed() > 0) {
    BATON_RETURN_IF_ERROR(PostReceive());
    end_->NotePosted();
  }
  return absl::OkStatus();
}

// `message`: null for a bell without one.
absl::Status PeerStream::Post(const StreamEnd& next, uint32_t immediate, uint64_t offset,
                              const verbs::ScatterGather* message) {
  verbs::SendRequest request;
  request.wr_id = staged_;
  request.opcode = verbs::Opcode::kWriteWithImmediate;
  request.immediate = immediate;
  request.remote_address = end_->state().sender.remote_address + offset;
  request.rkey = end_->state().sender.rkey;
  request.solicited = true;
  if (message != nullptr) request.sges = {message, 1};
  size_t posted = 0;
  BATON_RETURN_IF_ERROR(queue_pair_->PostSend({&request, 1}, &posted));
  ++sends_outstanding_;
  end_ = next;
  return absl::OkStatus();
}

// Where in the staging memory a message lies: contiguous, so the rest at the end may be skipped.
std::optional<uint64_t> PeerStream::PlaceInStaging(uint64_t length) {
  const uint64_t behind = staged_ % memory_.staging_bytes;
  const bool wraps = behind + length > memory_.staging_bytes;
  const uint64_t start = wraps ? staged_ - behind + memory_.staging_bytes : staged_;
  const uint64_t oldest = unstaged_ == staged_ ? start : unstaged_;
  if (start + length - oldest > memory_.staging_bytes) return std::nullopt;
  unstaged_ = oldest;
  staged_ = start + length;
  return start % memory_.staging_bytes;
}

absl::Status PeerStream::CheckRoom(uint64_t length) {
  const uint64_t ring = uint64_t{end_->state().sender.ring_units} * kUnitBytes;
  const uint64_t device =
      requests_.max_message_bytes == 0 ? UINT64_MAX : requests_.max_message_bytes;
  if (length > std::min({uint64_t{memory_.staging_bytes}, ring, device})) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message: ", length, " bytes, and the peer's ring has ", ring, ", the memory for messages ",
        memory_.staging_bytes, ", and the device sends at most ",
        requests_.max_message_bytes == 0 ? "any length" : absl::StrCat(device)));
  }
  if (sends_outstanding_ + kSendsForMessage > requests_.sends) {
    return absl::ResourceExhaustedError("no room in the send queue");
  }
  const Refusal refusal = end_->MayPlace(static_cast<uint32_t>(length));
  if (refusal == Refusal::kNone) return absl::OkStatus();
  if (refusal == Refusal::kNoBell) {
    return absl::ResourceExhaustedError("the peer has no receive for the message's bell");
  }
  StreamEnd next = *end_;
  if (const std::optional<uint32_t> ask = next.Ask(static_cast<uint32_t>(length))) {
    BATON_RETURN_IF_ERROR(Post(next, *ask, 0, nullptr));
  }
  return absl::ResourceExhaustedError("the peer's ring has no room for the message");
}

absl::Status PeerStream::Send(absl::Span<const uint8_t> message) {
  if (!end_) return absl::FailedPreconditionError("the peer's greeting has not come");
  BATON_RETURN_IF_ERROR(CheckRoom(message.size()));
  const uint64_t staged = staged_, unstaged = unstaged_;
  const std::optional<uint64_t> at = PlaceInStaging(message.size());
  if (!at) return absl::ResourceExhaustedError("no room in the memory for messages");
  uint8_t* const copy = memory_.base + memory_.ring_bytes + *at;
  const auto length = static_cast<uint32_t>(message.size());
  if (length != 0) std::memcpy(copy, message.data(), length);
  StreamEnd next = *end_;
  const StreamEnd::Placement place = next.Place(length);
  const verbs::ScatterGather sge = {reinterpret_cast<uint64_t>(copy), length, memory_.lkey};
  absl::Status posted = Post(next, place.immediate, place.offset, length == 0 ? nullptr : &sge);
  if (!posted.ok()) {
    staged_ = staged;
    unstaged_ = unstaged;
  }
  return posted;
}

absl::Status PeerStream::ReturnCredit() {
  BATON_RETURN_IF_ERROR(PostOwed());
  if (sends_outstanding_ == requests_.sends) return absl::OkStatus();  // a send's completion comes
  StreamEnd next = *end_;
  const std::optional<uint32_t> report = next.Report();
  return report ? Post(next, *report, 0, nullptr) : absl::OkStatus();
}

absl::StatusOr<PeerStream::Event> PeerStream::OnCompletion(const verbs::Completion& completion) {
  if (completion.status != verbs::CompletionStatus::kSuccess) {
    return absl::UnavailableError(absl::StrCat(
        "the connection has failed: ", std::string(CompletionStatusName(completion.status))));
  }
  if (!end_) return absl::FailedPreconditionError("the peer's greeting has not come");
  Event event;
  if ((completion.wr_id & kReceiveBit) != 0) {
    BATON_ASSIGN_OR_RETURN(event, OnReceive(completion));
    // An answer may report as well.
    if (event.kind == Event::Kind::kMessage && !end_->IsReportOverdue()) return event;
  } else {
    --sends_outstanding_;
    unstaged_ = std::max(unstaged_, completion.wr_id);
    event.has_credit = true;
  }
  BATON_RETURN_IF_ERROR(ReturnCredit());
  return event;
}

absl::StatusOr<PeerStream::Event> PeerStream::OnReceive(const verbs::Completion& completion) {
  if (completion.opcode != verbs::CompletionOpcode::kReceiveWithImmediate ||
      !completion.has_immediate) {
    return Wrong("the peer has sent a message that is not the stream's");
  }
  const StreamEnd::Arrival arrival = end_->OnBell(completion.immediate, completion.byte_len);
  if (arrival.kind == StreamEnd::Arrival::Kind::kBroken) {
    return absl::InvalidArgumentError(absl::StrCat("the peer's bell ", completion.immediate,
                                                   " with ", completion.byte_len,
                                                   " bytes is not of this stream"));
  }
  BATON_RETURN_IF_ERROR(PostOwed());
  Event event;
  event.has_credit = arrival.has_credit;
  if (arrival.kind == StreamEnd::Arrival::Kind::kMessage) {
    event.kind = Event::Kind::kMessage;
    event.message = {memory_.base + arrival.offset, arrival.length};
    event.end = arrival.end;
  }
  return event;
}

absl::Status PeerStream::Release(const Event& event) {
  if (!end_ || !end_->Release(event.end)) return Wrong("event: its message is not in the ring");
  return ReturnCredit();
}

}  // namespace baton::stream
