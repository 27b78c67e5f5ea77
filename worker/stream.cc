#include "worker/stream.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"
#include "worker/work_requests.h"

namespace baton {
namespace {

using stream::StreamEnd;
using Refusal = StreamEnd::Refusal;

// The last place in the send queue is for reports.
constexpr uint32_t kSendsForMessage = 2;

absl::Status CheckRing(const StreamRing& ring) {
  const uint32_t bytes = ring.memory.length;
  if (bytes < stream::kMinRingBytes || bytes > stream::kMaxRingBytes ||
      bytes % stream::kUnitBytes != 0) {
    return Invalid("ring: ", bytes, " bytes: choose a multiple of ", stream::kUnitBytes, " from ",
                   stream::kMinRingBytes, " to ", stream::kMaxRingBytes);
  }
  return absl::OkStatus();
}

stream::Greeting Greet(const StreamRing& ring, uint16_t window) {
  return {stream::kGreetingMagic,
          stream::kStreamVersion,
          window,
          ring.memory.length,
          ring.rkey,
          ring.address};
}

}  // namespace

absl::StatusOr<StreamRing> Stream::OpenRing(Shard& shard, uint32_t bytes) {
  StreamRing ring;
  ring.memory.length = bytes;
  BATON_RETURN_IF_ERROR(CheckRing(ring));
  // A bell may name bytes that its peer has not written, so they must not be what others left.
  BATON_ASSIGN_OR_RETURN(
      const HeapGrants::Granted granted,
      HeapGrants::Allocate(shard, bytes, stream::kUnitBytes, verbs::kRemoteWrite));
  BATON_CRASH_POINT("stream-ring-granted");
  ring.memory = granted.memory;
  ring.grant = granted.grant.id;
  ring.rkey = granted.grant.rkey;
  ring.address = granted.grant.remote_address;
  return ring;
}

absl::Status Stream::CloseRing(Shard& shard, const StreamRing& ring) {
  BATON_RETURN_IF_ERROR(HeapGrants::Revoke(shard, ring.memory, ring.grant));
  BATON_CRASH_POINT("stream-ring-revoked");
  return shard.heap().Free(ring.memory);
}

absl::StatusOr<Stream> Stream::Begin(Connection& connection, const StreamRing& ring,
                                     uint16_t window, uint16_t greeted) {
  BATON_RETURN_IF_ERROR(CheckRing(ring));
  if (window < stream::kMinWindow || window > stream::kMaxWindow) {
    return Invalid("window: ", window, ": choose ", stream::kMinWindow, " to ", stream::kMaxWindow);
  }
  if (connection.shard().worker().capacity().send_queue_depth < kSendsForMessage) {
    return absl::FailedPreconditionError(
        "the service's connections can have one send on the way, and a stream needs two: raise its "
        "send_queue_depth");
  }
  const std::optional<stream::Greeting> peer = stream::DecodeGreeting(connection.private_data());
  if (!peer) {
    return Invalid("private data: ", connection.private_data().size(),
                   " bytes that do not begin with a stream's greeting of version ",
                   stream::kStreamVersion);
  }
  Stream begun(connection, StreamEnd::Begin(*peer, ring.memory.length, window, greeted));
  begun.end_.SetPlace(ring.memory.offset, ring.grant, ring.rkey);
  BATON_RETURN_IF_ERROR(begun.PostReceives());
  if (begun.end_.owed() == 0) return begun;
  return absl::ResourceExhaustedError(
      absl::StrCat("window: ", window,
                   " receives do not fit into the receive queue: lower it, or "
                   "raise the service's receive_queue_depth"));
}

absl::StatusOr<Stream> Stream::Accept(Connection& connection, const StreamRing& ring,
                                      uint16_t window) {
  BATON_ASSIGN_OR_RETURN(Stream begun, Begin(connection, ring, window, window));
  BATON_RETURN_IF_ERROR(connection.shard().Accept(connection, stream::Encode(Greet(ring, window))));
  return begun;
}

std::string Stream::GreetingOf(const StreamRing& ring) {
  return stream::Encode(Greet(ring, /*window=*/0));
}

absl::StatusOr<Stream> Stream::Connected(Connection& connection, const StreamRing& ring,
                                         uint16_t window) {
  BATON_ASSIGN_OR_RETURN(Stream begun, Begin(connection, ring, window, /*greeted=*/0));
  BATON_RETURN_IF_ERROR(begun.ReturnCredit());
  if (!begun.end_.IsReportOverdue()) return begun;
  return absl::ResourceExhaustedError(
      "no room for the stream's first report, in the transaction or at the peer");
}

absl::StatusOr<Stream> Stream::Load(Connection& connection, absl::Span<const uint8_t> state) {
  stream::StreamState saved = {};
  if (state.size() >= kStateBytes) std::memcpy(&saved, state.data(), kStateBytes);
  const std::optional<StreamEnd> end = StreamEnd::Load(saved);
  if (!end) {
    return absl::DataLossError(absl::StrCat("connection ", connection.index(), ": its state of ",
                                            state.size(), " bytes is not a stream's of version ",
                                            stream::kStreamVersion));
  }
  return Stream(connection, *end);
}

StreamRing Stream::ring() const {
  const stream::ReceiverState& state = end_.state().receiver;
  return {{state.ring_offset, state.ring_units * stream::kUnitBytes}, state.grant, state.rkey, 0};
}

absl::StatusOr<Stream::Event> Stream::OnCompletion(const Completion& completion) {
  Event event;
  if (completion.status != verbs::CompletionStatus::kSuccess) return event;  // it has failed
  if (completion.kind == Completion::Kind::kReceive) {
    BATON_ASSIGN_OR_RETURN(event, OnReceive(completion));
    // The answer may report as well.
    if (event.kind == Event::Kind::kMessage && !end_.IsReportOverdue()) return event;
  } else {
    event.has_credit = completion.kind == Completion::Kind::kSend;  // the send queue has room
  }
  BATON_RETURN_IF_ERROR(ReturnCredit());
  return event;
}

absl::StatusOr<Stream::Event> Stream::OnReceive(const Completion& completion) {
  if (completion.opcode != verbs::CompletionOpcode::kReceiveWithImmediate ||
      !completion.has_immediate) {
    return Invalid("connection ", connection_->index(),
                   ": the peer has sent a message that is not the stream's");
  }
  const StreamEnd::Arrival arrival = end_.OnBell(completion.immediate, completion.byte_len);
  if (arrival.kind == StreamEnd::Arrival::Kind::kBroken) {
    return Invalid("connection ", connection_->index(), ": the peer's bell ", completion.immediate,
                   " with ", completion.byte_len, " bytes is not of this stream");
  }
  BATON_RETURN_IF_ERROR(PostReceives());
  Event event;
  event.has_credit = arrival.has_credit;
  if (arrival.kind == StreamEnd::Arrival::Kind::kMessage) {
    event.kind = Event::Kind::kMessage;
    event.message = {end_.state().receiver.ring_offset + arrival.offset, arrival.length};
    event.end = arrival.end;
  }
  return event;
}

// Receives that have no room in the log now are posted at a later completion, and reported then.
absl::Status Stream::PostReceives() {
  while (end_.owed() > 0) {
    const absl::Status posted = connection_->shard().Receive(*connection_, {});
    if (absl::IsResourceExhausted(posted)) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(posted);
    end_.NotePosted();
  }
  return absl::OkStatus();
}

// Each is staged before it counts. A report that has no room in the transaction now is rung at a
// later completion: it is no fault of the peer.
absl::Status Stream::ReturnCredit() {
  BATON_RETURN_IF_ERROR(PostReceives());
  if (connection_->send_room() == 0) return absl::OkStatus();  // a send's completion comes
  StreamEnd next = end_;
  const std::optional<uint32_t> report = next.Report();
  if (!report) return absl::OkStatus();
  const absl::Status rung = Ring(*report);
  if (absl::IsResourceExhausted(rung)) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(rung);
  end_ = next;
  BATON_CRASH_POINT("stream-reported");
  return absl::OkStatus();
}

absl::Status Stream::Ring(uint32_t immediate) {
  const stream::SenderState& state = end_.state().sender;
  SendWork bell;
  bell.opcode = verbs::Opcode::kWriteWithImmediate;
  bell.immediate = immediate;
  bell.remote_address = state.remote_address;
  bell.rkey = state.rkey;
  bell.solicited = true;
  return connection_->shard().Send(*connection_, bell);
}

absl::Status Stream::Send(absl::Span<const Buffer> buffers) {
  uint64_t length = 0;
  for (const Buffer& buffer : buffers) length += buffer.length;
  BATON_RETURN_IF_ERROR(CheckRoom(length));
  StreamEnd next = end_;
  const StreamEnd::Placement place = next.Place(static_cast<uint32_t>(length));
  SendWork write;
  write.opcode = verbs::Opcode::kWriteWithImmediate;
  write.buffers = buffers;
  write.immediate = place.immediate;
  write.remote_address = end_.state().sender.remote_address + place.offset;
  write.rkey = end_.state().sender.rkey;
  write.solicited = true;
  BATON_RETURN_IF_ERROR(connection_->shard().Send(*connection_, write));
  end_ = next;
  BATON_CRASH_POINT("stream-placed");
  return absl::OkStatus();
}

absl::Status Stream::SendCopy(absl::Span<const uint8_t> message) {
  if (message.empty()) return Send({});
  BATON_RETURN_IF_ERROR(CheckRoom(message.size()));
  Heap& heap = connection_->shard().heap();
  BATON_ASSIGN_OR_RETURN(const Buffer copy, heap.Allocate(message.size()));
  std::memcpy(heap.At(copy), message.data(), message.size());
  const absl::Status sent = Send({&copy, 1});
  const absl::Status freed = heap.Free(copy);  // it is held until the send is acknowledged
  return sent.ok() ? freed : sent;
}

absl::Status Stream::CheckLength(uint64_t length) const {
  if (length <= longest_message()) return absl::OkStatus();
  if (length > peer_ring_bytes()) {
    return Invalid("buffers: ", length, " bytes, and the peer's ring has ", peer_ring_bytes());
  }
  return Invalid("buffers: ", length, " bytes in one message, the service's device sends at most ",
                 longest_message());
}

uint32_t Stream::longest_message() const {
  const uint64_t device = connection_->shard().worker().capacity().max_message_bytes;
  if (device == 0) return peer_ring_bytes();
  return static_cast<uint32_t>(std::min<uint64_t>(peer_ring_bytes(), device));
}

// Asks the peer for a report if a message that is refused could wait for ever.
absl::Status Stream::CheckRoom(uint64_t length) {
  BATON_RETURN_IF_ERROR(CheckLength(length));
  if (connection_->send_room() < kSendsForMessage) {
    return absl::ResourceExhaustedError("no room in the send queue");
  }
  const Refusal refusal = end_.MayPlace(static_cast<uint32_t>(length));
  if (refusal == Refusal::kNone) return absl::OkStatus();
  if (refusal == Refusal::kNoBell) {
    return absl::ResourceExhaustedError("the peer has no receive for the message's bell");
  }
  BATON_RETURN_IF_ERROR(AskForReport(static_cast<uint32_t>(length)));
  return absl::ResourceExhaustedError("the peer's ring has no room for the message");
}

absl::Status Stream::AskForReport(uint32_t length) {
  StreamEnd next = end_;
  if (const std::optional<uint32_t> ask = next.Ask(length)) {
    BATON_RETURN_IF_ERROR(Ring(*ask));
    end_ = next;
  }
  return absl::OkStatus();
}

uint32_t Stream::RoomFor(uint32_t length, uint32_t most) const {
  if (length > longest_message()) return 0;
  const uint32_t sends = connection_->send_room();
  most = std::min(most, sends - std::min(sends, kSendsForMessage - 1));
  StreamEnd tried = end_;
  uint32_t count = 0;
  while (count < most && tried.Place(length).refusal == Refusal::kNone) ++count;
  return count;
}

absl::StatusOr<bool> Stream::AwaitRoom(uint32_t length) {
  BATON_RETURN_IF_ERROR(CheckLength(length));
  if (RoomFor(length, 1) > 0) return true;
  const bool lacks_ring = end_.MayPlace(length) == Refusal::kNoRoom;
  if (lacks_ring && connection_->send_room() >= kSendsForMessage) {
    BATON_RETURN_IF_ERROR(AskForReport(length));
  }
  return false;
}

absl::Status Stream::Release(const Event& event) {
  if (!end_.Release(event.end)) {
    return Invalid("event: its message is not in the ring, or was released");
  }
  return ReturnCredit();
}

}  // namespace baton
