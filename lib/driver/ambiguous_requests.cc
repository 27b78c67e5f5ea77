#include "lib/driver/ambiguous_requests.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"

namespace baton::driver {

using arena::ConnectionRecord;
using arena::Direction;
using arena::MarkerCursors;
using arena::QueueCursors;
using arena::SpareRecord;
using arena::SpareState;

uint64_t LengthOf(const arena::WorkRequest& request) {
  uint64_t length = 0;
  for (uint32_t i = 0; i < std::min<uint32_t>(request.sge_count, arena::kMaxSges); ++i) {
    length += arena::RangeOf(request, i).length;
  }
  return length;
}

// A driver of an earlier release may have posted a marker or spare to a device that can be asked.
absl::Status AmbiguousRequests::Resolve(uint32_t index, bool receive) {
  ConnectionRecord& connection = state_.record(index);
  if (!state_.device_of(index).queue_pair) return absl::OkStatus();
  const MarkerCursors& markers = MarkersOf(connection, receive);
  if (Outstanding(markers) != 0) {
    return markers.confirmed == markers.begun ? absl::OkStatus() : PostMarker(index, receive);
  }
  const SpareRecord* const spare = receive ? LastSpare(index) : nullptr;
  if (spare && SpareState(spare->state) == SpareState::kConfirmed) return absl::OkStatus();
  if (!spare && MaybePosted(connection, receive) == 0) return absl::OkStatus();
  if (!spare) {
    const absl::Status answered = AskDevice(index, receive);
    if (!absl::IsUnimplemented(answered)) return answered;
  }
  return receive && IsLive(connection) ? PostSpare(index) : PostMarker(index, receive);
}

// Returns kUnimplemented if the device cannot say which requests are queued, or not now: a request
// whose completion was consumed and is not logged yet is no longer queued.
absl::Status AmbiguousRequests::AskDevice(uint32_t index, bool receive) {
  const absl::StatusOr<std::optional<uint64_t>> last =
      state_.device_of(index).queue_pair->LastQueued(receive);
  if (absl::IsUnimplemented(last.status())) return last.status();
  if (state_.posts_held) return absl::OkStatus();  // Recovery asks again
  const arena::PollSlot& first_taken = arena_->poll_slots(state_.ShardOf(state_.record(index)))[0];
  if (arena::LoadRelaxed(first_taken.wr_id) != arena::kInvalidWrId) {
    return absl::UnimplementedError("a completion is not logged yet");
  }
  BATON_RETURN_IF_ERROR(last.status());
  BATON_ASSIGN_OR_RETURN(const uint64_t end, EndOfQueued(index, receive, *last));
  ++state_.recovery.answers;
  Settle(index, receive, end);
  return absl::OkStatus();
}

// Returns the end of the requests whose last one in the device is `last`. REQUIRES: all completions
// are logged. Requests before `posted` were queued, and those behind `attempted` were not: a device
// that contradicts this is not believed.
absl::StatusOr<uint64_t> AmbiguousRequests::EndOfQueued(uint32_t index, bool receive,
                                                        std::optional<uint64_t> last) const {
  const ConnectionRecord& connection = state_.record(index);
  const QueueCursors& cursors = receive ? connection.receive : connection.send;
  const uint64_t most = cursors.posted + MaybePosted(connection, receive);
  uint64_t end = cursors.completed;
  bool makes_sense = !last.has_value();
  if (last.has_value()) {
    end += arena::WrIdSequence(arena::WrIdSequence(*last) - end) + 1;
    const Direction direction = receive ? Direction::kReceive : Direction::kSend;
    makes_sense = *last == arena::PackWrId(index, connection.generation, direction, end - 1);
  }
  if (makes_sense && end >= cursors.posted && end <= most) return end;
  return absl::DataLossError(absl::StrCat(
      "its ", receive ? "receive" : "send", " queue says that ",
      last.has_value() ? absl::StrCat("the last request is ", absl::Hex(*last)) : "it is empty",
      ", and requests up to ", cursors.posted, " were posted, ", cursors.completed,
      " have completed, and ", most, " may have been posted"));
}

// Posts a WRITE of no bytes, or a receive without buffers. When it has completed, every request
// posted before it has, too. A receive completes by itself only in the error state; otherwise a
// spare is posted.
absl::Status AmbiguousRequests::PostMarker(uint32_t index, bool receive) {
  ConnectionRecord& connection = state_.record(index);
  MarkerCursors& markers = MarkersOf(connection, receive);
  ShardQueue& queue = state_.shards[state_.ShardOf(connection)];
  const uint32_t outstanding = Outstanding(markers) + (receive ? CountSpares(index) : 0);
  if (outstanding >= arena::kMarkers || queue.markers >= arena::kShardMarkers) {
    return absl::ResourceExhaustedError("too many recoveries died of it");
  }
  arena::StoreRelaxed(markers.begun, static_cast<uint8_t>(markers.begun + 1));
  ++queue.markers;
  ++state_.recovery.markers;
  if (!receive) state_.slots[index].sends_held = true;
  BATON_CRASH_POINT("driver-marker-begun");
  const uint64_t wr_id = arena::PackWrId(index, connection.generation,
                                         receive ? Direction::kReceive : Direction::kSend,
                                         arena::kMarkerSequence + markers.begun);
  verbs::SendRequest write;
  write.wr_id = wr_id;
  write.opcode = verbs::Opcode::kWrite;
  const verbs::ReceiveRequest nothing = {wr_id, {}};
  verbs::QueuePair& queue_pair = *state_.device_of(index).queue_pair;
  size_t posted = 0;
  const absl::Status status = receive ? queue_pair.PostReceive({&nothing, 1}, &posted)
                                      : queue_pair.PostSend({&write, 1}, &posted);
  BATON_CRASH_POINT("driver-marker-posted");
  BATON_RETURN_IF_ERROR(status);
  arena::StoreRelaxed(markers.confirmed, markers.begun);
  BATON_CRASH_POINT("driver-marker-confirmed");
  return absl::OkStatus();
}

void AmbiguousRequests::SettleCompleted(uint32_t index, bool receive) {
  const ConnectionRecord& connection = state_.record(index);
  Settle(index, receive, (receive ? connection.receive : connection.send).completed);
}

// Records that the requests before `end` were posted, and no others.
void AmbiguousRequests::Settle(uint32_t index, bool receive, uint64_t end) {
  ConnectionRecord& connection = state_.record(index);
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  ShardCounters& counters = state_.shards[state_.ShardOf(connection)].counters;
  const uint64_t more = end - cursors.posted;  // negative (it wraps) if abandoned
  const uint64_t found = end > cursors.posted ? more : 0;
  if (!receive) state_.recovery.sends_found_posted += found;
  (receive ? state_.recovery.receives_never_posted : state_.recovery.sends_never_posted) +=
      MaybePosted(connection, receive) - found;
  (receive ? counters.receives_posted : counters.sends_posted) += more;
  if (!IsLive(connection)) {
    (receive ? counters.receives_committed : counters.sends_committed) += more;
  }
  arena::StoreRelease(cursors.posted, end);
  BATON_CRASH_POINT("driver-settled");
  state_.observer->OnSettled(index, receive, end);
  arena::StoreRelaxed(receive ? connection.receive_attempted : connection.send_attempted,
                      static_cast<uint32_t>(end));
}

void AmbiguousRequests::SettleAbandoned(uint32_t index) {
  ConnectionRecord& connection = state_.record(index);
  FreeSpares(index, true, ~0u);
  for (const bool receive : {true, false}) {
    MarkerCursors& markers = MarkersOf(connection, receive);
    if (!receive || !state_.SharesReceives()) SettleCompleted(index, receive);
    state_.shards[state_.ShardOf(connection)].markers -= Outstanding(markers);
    arena::StoreRelaxed(markers.completed, markers.begun);
  }
}

const SpareRecord* AmbiguousRequests::LastSpare(uint32_t index) const {
  const SpareRecord* last = nullptr;
  const uint32_t shard = state_.ShardOf(state_.record(index));
  for (uint32_t i = 0; state_.shards[shard].spares_in_use != 0 && i < arena::kSpares; ++i) {
    const SpareRecord& spare = arena_->spare(shard, i);
    if (spare.owner != index + 1 || SpareState(spare.state) == SpareState::kFilled) continue;
    if (!last || spare.order > last->order) last = &spare;
  }
  return last;
}

uint32_t AmbiguousRequests::CountSpares(uint32_t index) const {
  uint32_t count = 0;
  const uint32_t shard = state_.ShardOf(state_.record(index));
  for (uint32_t i = 0; state_.shards[shard].spares_in_use != 0 && i < arena::kSpares; ++i) {
    if (arena_->spare(shard, i).owner == index + 1) ++count;
  }
  return count;
}

// Posts a spare behind receives that may have been posted: the peer finds a receive in any case. No
// other receive is posted before the spare completes, so it is known which one it stands for.
absl::Status AmbiguousRequests::PostSpare(uint32_t index) {
  ConnectionRecord& connection = state_.record(index);
  const uint32_t shard = state_.ShardOf(connection);
  const uint64_t first = connection.receive.posted;
  const uint64_t end =
      std::max(connection.receive.committed, first + MaybePosted(connection, true));
  if (end - first > arena_->shape().receive_queue_depth) {
    return absl::ResourceExhaustedError("more receives than the queue holds may have been posted");
  }
  for (uint64_t i = first; i < end; ++i) {
    const arena::WorkRequest request = arena::CopyOnce(arena_->receive_request(index, i));
    if (LengthOf(request) > arena::kSpareBytes) {
      return absl::ResourceExhaustedError(
          "a receive that is committed and may be the next is larger than a spare");
    }
  }
  uint32_t number = arena::kSpares;
  uint32_t order = 0;
  for (uint32_t i = arena::kSpares; i-- > 0;) {
    const SpareRecord& spare = arena_->spare(shard, i);
    if (spare.owner == 0) number = i;
    if (spare.owner == index + 1) order = std::max(order, spare.order);
  }
  if (number == arena::kSpares || CountSpares(index) >= arena::kMarkers) {
    return absl::ResourceExhaustedError("no spare receive is free");
  }
  SpareRecord& spare = arena_->spare(shard, number);
  spare.generation = connection.generation;
  spare.state = static_cast<uint32_t>(SpareState::kBegun);
  spare.order = order + 1;
  arena::StoreRelease(spare.owner, index + 1);
  ++state_.shards[shard].spares_in_use;
  ++state_.recovery.spares;
  state_.slots[index].receives_held = true;
  BATON_CRASH_POINT("driver-spare-begun");
  const verbs::ScatterGather sge = {reinterpret_cast<uint64_t>(arena_->spare_buffer(shard, number)),
                                    arena::kSpareBytes, state_.objects->spares->lkey()};
  const verbs::ReceiveRequest request = {
      arena::PackWrId(index, connection.generation, Direction::kReceive,
                      arena::kSpareSequence + number),
      {&sge, 1}};
  size_t posted = 0;
  const absl::Status status =
      state_.device_of(index).queue_pair->PostReceive({&request, 1}, &posted);
  BATON_CRASH_POINT("driver-spare-posted");
  BATON_RETURN_IF_ERROR(status);
  arena::StoreRelaxed(spare.state, static_cast<uint32_t>(SpareState::kConfirmed));
  BATON_CRASH_POINT("driver-spare-confirmed");
  return absl::OkStatus();
}

void AmbiguousRequests::FreeSpare(uint32_t shard, SpareRecord& spare) {
  arena::StoreRelease(spare.owner, 0u);
  --state_.shards[shard].spares_in_use;
  BATON_CRASH_POINT("driver-spare-freed");
}

void AmbiguousRequests::FreeSpares(uint32_t index, bool filled_too, uint32_t last) {
  const uint32_t shard = state_.ShardOf(state_.record(index));
  for (uint32_t i = 0; state_.shards[shard].spares_in_use != 0 && i < arena::kSpares; ++i) {
    SpareRecord& spare = arena_->spare(shard, i);
    if (spare.owner != index + 1 || spare.order > last) continue;
    if (SpareState(spare.state) != SpareState::kFilled || filled_too) FreeSpare(shard, spare);
  }
}

}  // namespace baton::driver
