#include "lib/stream/ring.h"

#include <algorithm>
#include <cstring>

namespace baton::stream {
namespace {

// The last of the bells that are left is for reports.
constexpr uint32_t kBellsForMessage = 2;

// A message without bytes takes a unit, too: so messages end at different positions.
uint64_t UnitsOf(uint32_t length) {
  return (std::max(uint64_t{length}, uint64_t{1}) + kUnitBytes - 1) / kUnitBytes;
}

bool IsRing(uint64_t bytes) {
  return bytes >= kMinRingBytes && bytes <= kMaxRingBytes && bytes % kUnitBytes == 0;
}

// Returns how far the 22 bits `head` are ahead of `known`; negative: it is an older report.
int32_t Ahead(uint32_t head, uint64_t known) {
  constexpr uint32_t kUnused = 32 - kHeadBits;
  return static_cast<int32_t>((head - static_cast<uint32_t>(known)) << kUnused) >> kUnused;
}

}  // namespace

std::string Encode(const Greeting& greeting) {
  return std::string(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
}

std::optional<Greeting> DecodeGreeting(std::string_view private_data) {
  Greeting greeting;
  if (private_data.size() < sizeof(greeting)) return std::nullopt;
  std::memcpy(&greeting, private_data.data(), sizeof(greeting));
  const bool known = greeting.magic == kGreetingMagic && greeting.version == kStreamVersion;
  if (!known || greeting.window > kMaxWindow || !IsRing(greeting.ring_bytes)) return std::nullopt;
  return greeting;
}

StreamEnd StreamEnd::Begin(const Greeting& peer, uint32_t ring_bytes, uint16_t window,
                           uint16_t greeted) {
  StreamState state = {};
  state.sender.version = kStreamVersion;
  state.sender.ring_units = peer.ring_bytes / kUnitBytes;
  state.sender.remote_address = peer.address;
  state.sender.rkey = peer.rkey;
  state.sender.allowed = peer.window;
  state.receiver.version = kStreamVersion;
  state.receiver.window = window;
  state.receiver.ring_units = ring_bytes / kUnitBytes;
  state.receiver.owed = window;
  state.receiver.reported = greeted;
  return StreamEnd(state);
}

std::optional<StreamEnd> StreamEnd::Load(const StreamState& state) {
  const SenderState& sender = state.sender;
  const ReceiverState& receiver = state.receiver;
  const bool whole = sender.version == kStreamVersion && receiver.version == kStreamVersion &&
                     IsRing(uint64_t{sender.ring_units} * kUnitBytes) &&
                     IsRing(uint64_t{receiver.ring_units} * kUnitBytes) &&
                     sender.allowed - sender.bells <= kMaxWindow && sender.freed <= sender.tail &&
                     receiver.owed <= receiver.window && receiver.window <= kMaxWindow &&
                     receiver.reported_head <= receiver.head && receiver.head <= receiver.tail;
  if (!whole) return std::nullopt;
  return StreamEnd(state);
}

// Where a message of `units` lies behind `tail`. Both ends come to the same place. What is skipped
// at the ring's end is in use like a message, unless nothing else is.
StreamEnd::Range StreamEnd::Next(uint64_t tail, uint64_t oldest, uint32_t ring_units,
                                 uint64_t units) {
  const uint64_t behind = tail % ring_units;
  const bool wraps = behind + units > ring_units;
  const uint64_t start = wraps ? tail - behind + ring_units : tail;
  return {start, start + units, oldest == tail ? start : oldest, wraps};
}

StreamEnd::Refusal StreamEnd::MayPlace(uint32_t length) const {
  const SenderState& sender = state_.sender;
  const uint64_t units = UnitsOf(length);
  if (units > sender.ring_units) return Refusal::kTooLong;
  const Range range = Next(sender.tail, sender.freed, sender.ring_units, units);
  if (range.end - range.oldest > sender.ring_units) return Refusal::kNoRoom;
  return bells_left() < kBellsForMessage ? Refusal::kNoBell : Refusal::kNone;
}

StreamEnd::Placement StreamEnd::Place(uint32_t length) {
  if (const Refusal refusal = MayPlace(length); refusal != Refusal::kNone) return {refusal, 0, 0};
  SenderState& sender = state_.sender;
  const Range range = Next(sender.tail, sender.freed, sender.ring_units, UnitsOf(length));
  sender.tail = range.end;
  sender.freed = range.oldest;
  ++sender.messages;
  return {Refusal::kNone, range.start % sender.ring_units * kUnitBytes,
          Ring(range.wraps ? BellKind::kWrapped : BellKind::kMessage)};
}

std::optional<uint32_t> StreamEnd::Ask(uint32_t length) {
  SenderState& sender = state_.sender;
  const bool comes_by_itself = UnitsOf(length) <= sender.ring_units / 4;
  if (comes_by_itself || sender.asked == sender.tail || bells_left() < kBellsForMessage) {
    return std::nullopt;
  }
  sender.asked = sender.tail;
  return Ring(BellKind::kAsk);
}

std::optional<uint32_t> StreamEnd::Report() {
  const ReceiverState& receiver = state_.receiver;
  const auto receives = static_cast<uint16_t>(receiver.posted - receiver.reported);
  const bool is_due =
      receives >= receiver.window / 2 ||
      receiver.head - receiver.reported_head >= receiver.ring_units / 4 ||
      (receiver.head >= receiver.wanted && receiver.reported_head < receiver.wanted);
  if (!is_due || bells_left() < (receives == 0 ? kBellsForMessage : 1)) return std::nullopt;
  return Ring(BellKind::kReport);
}

uint32_t StreamEnd::Ring(BellKind kind) {
  ReceiverState& receiver = state_.receiver;
  ++state_.sender.bells;
  receiver.reported = receiver.posted;
  receiver.reported_head = receiver.head;
  return Pack({kind, static_cast<uint32_t>(receiver.head), static_cast<uint8_t>(receiver.posted)});
}

StreamEnd::Arrival StreamEnd::OnBell(uint32_t immediate, uint32_t byte_len) {
  ReceiverState& receiver = state_.receiver;
  ++receiver.owed;
  const Bell bell = Unpack(immediate);
  Arrival arrival;
  const bool is_message = bell.kind == BellKind::kMessage || bell.kind == BellKind::kWrapped;
  if (!TakeReport(bell, &arrival.has_credit) || (!is_message && byte_len != 0)) {
    arrival.kind = Arrival::Kind::kBroken;
    return arrival;
  }
  if (bell.kind == BellKind::kAsk) receiver.wanted = receiver.tail;
  if (!is_message) return arrival;
  const Range range = Next(receiver.tail, receiver.head, receiver.ring_units, UnitsOf(byte_len));
  const bool fits = range.end - range.start <= receiver.ring_units &&
                    range.end - range.oldest <= receiver.ring_units;
  if (!fits || range.wraps != (bell.kind == BellKind::kWrapped)) {
    arrival.kind = Arrival::Kind::kBroken;
    return arrival;
  }
  receiver.tail = range.end;
  receiver.head = range.oldest;
  arrival.kind = Arrival::Kind::kMessage;
  arrival.length = byte_len;
  arrival.offset = range.start % receiver.ring_units * kUnitBytes;
  arrival.end = range.end;
  return arrival;
}

// Reports never go back, but one may have been sent before this end skipped the rest of an empty
// ring.
bool StreamEnd::TakeReport(const Bell& bell, bool* has_credit) {
  SenderState& sender = state_.sender;
  const uint32_t receives = static_cast<uint8_t>(bell.posted - sender.allowed);
  const int32_t freed = Ahead(bell.head, sender.freed);
  if (bells_left() + receives > kMaxWindow) return false;
  if (freed > 0 && static_cast<uint64_t>(freed) > sender.tail - sender.freed) return false;
  sender.allowed += receives;
  if (freed > 0) sender.freed += static_cast<uint64_t>(freed);
  *has_credit = receives > 0 || freed > 0;
  return true;
}

bool StreamEnd::Release(uint64_t end) {
  ReceiverState& receiver = state_.receiver;
  if (end < receiver.head || end > receiver.tail) return false;
  receiver.head = end;
  return true;
}

}  // namespace baton::stream
