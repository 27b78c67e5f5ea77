#include "lib/driver/request_poster.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/completion_mover.h"
#include "lib/driver/connection_state.h"

namespace baton::driver {
namespace {

using arena::ConnectionRecord;
using arena::Direction;
using arena::QueueCursors;
using arena::SpareRecord;
using arena::SpareState;
using verbs::CompletionStatus;

constexpr size_t kPostChunk = 64;

}  // namespace

RequestPoster::RequestPoster(DriverState& state, AmbiguousRequests& ambiguous,
                             ConnectionTeardown& teardown)
    : state_(state),
      arena_(state.arena),
      ambiguous_(ambiguous),
      teardown_(teardown),
      one_request_(*state.arena, state.objects->buffers->lkey(), 1) {}

template <typename Request>
void RequestPoster::PostCommitted(uint32_t connection, absl::Span<const Request> requests) {
  constexpr bool kReceive = std::is_same_v<Request, verbs::ReceiveRequest>;
  if (requests.empty()) return;
  if (MarkCommitted(connection, kReceive, requests.size())) PostRequests(connection, requests);
}

// Commits the next `count` requests of the queue. Returns true if the caller must post them now.
// Otherwise they were posted here behind those that waited, have to wait, or are never posted.
bool RequestPoster::MarkCommitted(uint32_t index, bool receive, uint64_t count) {
  ConnectionRecord& connection = state_.record(index);
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  const bool nothing_deferred = cursors.posted == cursors.committed;
  cursors.committed += count;
  BATON_CRASH_POINT("driver-cursor-folded");
  if (!IsLive(connection)) return false;  // they are never posted
  ShardCounters& counters = state_.shards[state_.ShardOf(connection)].counters;
  (receive ? counters.receives_committed : counters.sends_committed) += count;
  if (receive && state_.slots[index].receives_held) {
    DeliverSpares(index);
    return false;
  }
  if (!state_.CanPost(index, receive)) return false;
  if (!nothing_deferred) PostDeferred(index, receive);
  return nothing_deferred;
}

template <typename Request>
void RequestPoster::PostRequests(uint32_t connection, absl::Span<const Request> requests) {
  constexpr bool kReceive = std::is_same_v<Request, verbs::ReceiveRequest>;
  ConnectionRecord& target = state_.record(connection);
  QueueCursors& cursors = kReceive ? target.receive : target.send;
  ShardCounters& counters = state_.shards[state_.ShardOf(target)].counters;
  if (state_.device_of(connection).queue_pair == nullptr) [[unlikely]] {
    return teardown_.StartDraining(connection, CompletionStatus::kGeneralError, kNoQueuePair);
  }
  verbs::QueuePair& queue_pair = *state_.device_of(connection).queue_pair;
  while (!requests.empty()) {
    const auto chunk = requests.subspan(0, kPostChunk);
    arena::StoreRelaxed(kReceive ? target.receive_attempted : target.send_attempted,
                        static_cast<uint32_t>(cursors.posted + chunk.size()));
    BATON_CRASH_POINT("driver-before-post");
    size_t posted = 0;
    absl::Status status;
    if constexpr (kReceive) {
      status = queue_pair.PostReceive(chunk, &posted);
    } else {
      status = queue_pair.PostSend(chunk, &posted);
    }
    BATON_CRASH_POINT("driver-after-post");
    arena::StoreRelease(cursors.posted, cursors.posted + posted);
    BATON_CRASH_POINT("driver-posted");
    (kReceive ? counters.receives_posted : counters.sends_posted) += posted;
    // A refused request may have been queued all the same. The connection's end resolves it.
    if (!status.ok()) {
      teardown_.StartDraining(connection, CompletionStatus::kGeneralError, MessageOf(status));
      return;
    }
    requests.remove_prefix(chunk.size());
  }
}

// The requests have been in a worker's memory since they were committed, so they are copied and
// checked again. Those that were committed before the connection moved to its shard may name the
// first shard's heap.
void RequestPoster::PostDeferred(uint32_t connection, bool receive) {
  const ConnectionRecord& target = state_.record(connection);
  const QueueCursors& cursors = receive ? target.receive : target.send;
  while (state_.CanPost(connection, receive) && cursors.posted < cursors.committed) {
    const uint64_t wr_id =
        arena::PackWrId(connection, target.generation,
                        receive ? Direction::kReceive : Direction::kSend, cursors.posted);
    one_request_.Clear(RequestList::kAnyShard);
    const absl::Status checked =
        receive
            ? one_request_.AddReceive(arena_->receive_request(connection, cursors.posted), wr_id)
            : one_request_.AddSend(arena_->send_request(connection, cursors.posted), wr_id);
    if (!checked.ok()) {
      teardown_.StartDraining(connection, CompletionStatus::kGeneralError,
                              absl::StrCat("changed after its commit: ", checked.message()));
      return;
    }
    receive ? PostRequests(connection, one_request_.receives())
            : PostRequests(connection, one_request_.sends());
  }
}

void RequestPoster::PostAllDeferred(uint32_t connection) {
  PostDeferred(connection, true);
  PostDeferred(connection, false);
}

void RequestPoster::DeliverSpares(uint32_t index) {
  const ConnectionRecord& connection = state_.record(index);
  const uint32_t shard = state_.ShardOf(connection);
  for (uint32_t i = 0; i < arena::kSpares && IsLive(connection);) {
    SpareRecord& spare = arena_->spare(shard, i);
    const bool filled = spare.owner == index + 1 && SpareState(spare.state) == SpareState::kFilled;
    if (filled && spare.stands_for < connection.receive.completed) {
      ambiguous_.FreeSpare(shard, spare);  // a driver died between its delivery and this
    } else if (filled && spare.stands_for == connection.receive.completed &&
               connection.receive.completed < connection.receive.committed) {
      DeliverSpare(index, i);
      i = 0;
      continue;
    }
    ++i;
  }
  if (ambiguous_.CountSpares(index) != 0) return;
  state_.slots[index].receives_held = false;
  PostDeferred(index, true);
}

// The receive is known not to have been posted, so only this driver uses its buffer.
void RequestPoster::DeliverSpare(uint32_t index, uint32_t number) {
  const ConnectionRecord& connection = state_.record(index);
  const uint32_t shard = state_.ShardOf(connection);
  SpareRecord& spare = arena_->spare(shard, number);
  const arena::WorkRequest request =
      arena::CopyOnce(arena_->receive_request(index, connection.receive.completed));
  const absl::Status checked = CheckRequest(request, true, LimitsOf(*arena_));
  if (!checked.ok()) {
    return teardown_.StartDraining(index, CompletionStatus::kGeneralError,
                                   absl::StrCat("changed after its commit: ", checked.message()));
  }
  verbs::Completion completion;
  completion.wr_id = arena::PackWrId(index, connection.generation, arena::Direction::kReceive,
                                     connection.receive.completed);
  completion.opcode = verbs::CompletionOpcode(spare.opcode);
  completion.has_immediate = (spare.flags & arena::kCompletionHasImmediate) != 0;
  completion.has_invalidate = (spare.flags & arena::kCompletionHasInvalidate) != 0;
  completion.byte_len = arena::LoadRelaxed(spare.byte_len);
  completion.immediate = spare.immediate;
  if (completion.opcode == verbs::CompletionOpcode::kReceive) {
    if (completion.byte_len > std::min<uint64_t>(LengthOf(request), arena::kSpareBytes)) {
      completion.status = CompletionStatus::kLocalLengthError;
    } else {
      const uint8_t* from = arena_->spare_buffer(shard, number);
      uint32_t left = completion.byte_len;
      for (int i = 0; i < request.sge_count && left != 0; ++i) {
        const arena::BufferRange& range = arena::RangeOf(request, static_cast<uint32_t>(i));
        const uint32_t length = std::min(left, range.length);
        std::memcpy(arena_->buffers() + range.offset, from, length);
        from += length;
        left -= length;
      }
    }
  }
  BATON_CRASH_POINT("driver-spare-copied");
  LogRequest(state_, shard, index, true, completion);
  BATON_CRASH_POINT("driver-spare-delivered");
  if (completion.status != CompletionStatus::kSuccess) {
    teardown_.StartDraining(index, completion.status,
                            verbs::CompletionStatusName(completion.status));
  }
  ambiguous_.FreeSpare(shard, spare);
}

template void RequestPoster::PostCommitted(uint32_t connection,
                                           absl::Span<const verbs::ReceiveRequest> requests);
template void RequestPoster::PostCommitted(uint32_t connection,
                                           absl::Span<const verbs::SendRequest> requests);

}  // namespace baton::driver
