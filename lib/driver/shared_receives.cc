#include "lib/driver/shared_receives.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/completion_mover.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/poison.h"

namespace baton::driver {
namespace {

using arena::CompletionEntry;
using arena::ConnectionRecord;
using arena::ConnectionState;
using arena::PoisonLevel;
using arena::SharedReceive;
using arena::SharedReceiveState;
using verbs::CompletionStatus;

// The least time between two reports that a queue is low.
constexpr uint64_t kLowPauseNs = 10'000'000'000;

// The most slots that a recovery asks the device about. Each costs a look at the whole queue.
constexpr int kMostAsked = 8;

constexpr std::string_view kBroken = "the shared receive queue is broken";

}  // namespace

absl::Status BrokenQueue() { return absl::UnavailableError(View(kBroken)); }

SharedReceives::SharedReceives(DriverState& state, ConnectionTeardown& teardown)
    : state_(state),
      arena_(state.arena),
      teardown_(teardown),
      one_request_(*state.arena, state.objects->buffers->lkey(), 1) {}

// Posts one at a time, so that a dead driver leaves at most one ambiguous receive. Where the device
// cannot say whether it is queued, its slot is out of use until it completes. The slots of a broken
// queue stay free: the shard's connections end.
void SharedReceives::Post(uint32_t shard, const Transaction& transaction,
                          const TransactionPart& part) {
  if (state_.IsBroken(shard)) return;
  const auto named = std::bit_cast<arena::SharedReceivesEntry>(part.entry);
  const auto receives = transaction.receives.subspan(part.first_receive, named.count);
  for (uint32_t i = 0; i < named.count; ++i) {
    const absl::Status posted = PostOne(shard, named.slots[i], receives[i].sges);
    if (!posted.ok()) return Refuse(shard, MessageOf(posted));
  }
  ArmLimit(shard);
}

// A receive that the device refuses is ambiguous: it may be posted all the same. So its slot stays
// kAttempted.
absl::Status SharedReceives::PostOne(uint32_t shard, uint32_t slot,
                                     absl::Span<const verbs::ScatterGather> sges) {
  ShardCounters& counters = state_.shards[shard].counters;
  ++counters.receives_committed;
  arena::ShardRecord& owner = arena_->shard(shard);
  SharedReceive& receive = arena_->shared_receive(shard, slot);
  const uint32_t generation = arena::GenerationOf(receive) + 1;
  const verbs::ReceiveRequest posted = {arena::PackSharedReceive(slot, generation), sges};
  arena::StoreRelease(receive.word,
                      arena::PackSharedReceiveState(SharedReceiveState::kAttempted, generation));
  BATON_CRASH_POINT("driver-before-shared-post");
  size_t taken = 0;
  absl::Status status =
      state_.objects->shared_receive_queues[shard]->PostReceive({&posted, 1}, &taken);
  BATON_CRASH_POINT("driver-after-shared-post");
  if (!status.ok()) {
    owner.shared_receives_refused = 1;
    arena::StoreRelaxed(owner.shared_receives_unsure, owner.shared_receives_unsure + 1);
    return status;
  }
  SetSlotState(shard, slot, SharedReceiveState::kPosted);
  arena::StoreRelaxed(owner.shared_receives_posted, owner.shared_receives_posted + 1);
  ++counters.receives_posted;
  BATON_CRASH_POINT("driver-shared-posted");
  return absl::OkStatus();
}

void SharedReceives::SetSlotState(uint32_t shard, uint32_t slot, SharedReceiveState state) {
  SharedReceive& receive = arena_->shared_receive(shard, slot);
  arena::StoreRelease(receive.word,
                      arena::PackSharedReceiveState(state, arena::GenerationOf(receive)));
}

// Asks the device to report when a quarter of the receives is left. It is asked again only when
// more than half are posted.
void SharedReceives::ArmLimit(uint32_t shard) {
  ShardQueue& queue = state_.shards[shard];
  const uint32_t depth = arena_->shape().shared_receive_queue_depth;
  const uint32_t posted = arena_->shard(shard).shared_receives_posted;
  if (queue.limit_armed || state_.IsBroken(shard) || depth < 4 || posted <= depth / 2) return;
  if (queue.low_ns != 0 && MonotonicNanoseconds() - queue.low_ns < kLowPauseNs) return;
  // A device that cannot report this is used all the same.
  (void)state_.objects->shared_receive_queues[shard]->ArmLimit(depth / 4);
  queue.limit_armed = true;
}

// A queue that refuses a receive although it has room is broken: its connections would wait for
// ever. No more connections join it. Pending requests may still be accepted into another shard.
void SharedReceives::Refuse(uint32_t shard, std::string_view why) {
  arena_->shard(shard).shared_receives_refused = 1;
  BATON_CRASH_POINT("driver-shared-refused");
  for (uint32_t index = 0; index < state_.slots.size(); ++index) {
    const ConnectionRecord& connection = state_.record(index);
    if (connection.shard != shard || StateOf(connection) == ConnectionState::kRequested) continue;
    teardown_.StartDraining(index, CompletionStatus::kGeneralError,
                            absl::StrCat(View(kBroken), ": ", View(why)));
  }
}

// A dead driver may not have ended all connections of a broken queue, or its death was the one that
// broke the queue.
void SharedReceives::RefuseBroken(uint32_t shard) {
  if (state_.IsBroken(shard)) {
    Refuse(shard, "drivers died, and what they may have posted is out of use or unknown");
  }
}

void SharedReceives::NoteLogged(uint32_t shard, uint64_t wr_id) {
  if (IsOutstanding(shard, wr_id)) {
    SetSlotState(shard, arena::SharedReceiveSlot(wr_id), SharedReceiveState::kCompleted);
  }
}

bool SharedReceives::AllBroken() const {
  for (uint32_t i = 0; i < state_.shards.size(); ++i) {
    if (!state_.IsBroken(i)) return false;
  }
  return true;
}

// Returns whether the slot still waits for this completion.
bool SharedReceives::IsOutstanding(uint32_t shard, uint64_t wr_id) const {
  if (!arena::IsSharedReceive(wr_id)) return false;
  const uint32_t slot = arena::SharedReceiveSlot(wr_id);
  if (slot >= arena::SharedReceiveSlots(arena_->shape())) return false;
  const SharedReceive receive = arena_->shared_receive(shard, slot);
  const SharedReceiveState state = arena::StateOf(receive);
  return arena::GenerationOf(receive) == arena::WrIdGeneration(wr_id) &&
         (state == SharedReceiveState::kAttempted || state == SharedReceiveState::kPosted);
}

void SharedReceives::NoteCompleted(uint32_t shard, uint32_t slot, SharedReceiveState next) {
  arena::ShardRecord& owner = arena_->shard(shard);
  const bool ambiguous =
      arena::StateOf(arena_->shared_receive(shard, slot)) != SharedReceiveState::kPosted;
  uint32_t& count = ambiguous ? owner.shared_receives_unsure : owner.shared_receives_posted;
  SetSlotState(shard, slot, next);
  arena::StoreRelaxed(count, count - 1);
  BATON_CRASH_POINT("driver-shared-completed");
  ShardCounters& counters = state_.shards[shard].counters;
  ++counters.receives_completed;
  if (ambiguous) ++counters.receives_posted;
}

void SharedReceives::Log(uint32_t shard, const verbs::Completion& completion) {
  const uint64_t wr_id = completion.wr_id;   // other processes of a native service can write it
  if (!IsOutstanding(shard, wr_id)) return;  // a driver that died has logged it already
  uint32_t index = state_.FindQueuePair(completion.qp_number);
  if (index == DriverObserver::kNoConnection) {
    index = state_.BeginUnnoticed(shard, completion.qp_number);
  }
  const bool known = index != DriverObserver::kNoConnection;
  if (known) state_.SetAt(shard, arena::AtConnection(index));
  const bool ended = !known || StateOf(state_.record(index)) == ConnectionState::kClosed ||
                     state_.record(index).shard != shard || IsCondemned(state_.record(index));
  // If the connection was given up, its owner gets no entry.
  const uint32_t slot = arena::SharedReceiveSlot(wr_id);
  if (ended) return NoteCompleted(shard, slot, SharedReceiveState::kFree);
  ConnectionRecord& connection = state_.record(index);
  CompletionEntry entry = {};
  entry.wr_id = wr_id;
  FillEntry(arena::CompletionKind::kReceive, completion, &entry);
  entry.connection = index;
  entry.generation = connection.generation;
  entry.sequence = slot;
  entry.tag = arena_->shared_receive_request(shard, slot).tag;
  Spoil(PoisonLevel(connection.poison), &entry);
  if (!state_.shards[shard].log.Append(entry)) return;
  NoteCompleted(shard, slot, SharedReceiveState::kCompleted);
  ++connection.receive.completed;
  connection.bytes_received += completion.byte_len;
  state_.shards[shard].counters.bytes_received += completion.byte_len;
  if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    teardown_.EndAfterError(index, completion.status);
  }
}

void SharedReceives::Return(uint32_t shard, const CompletionEntry& entry) {
  const uint32_t slot = arena::SharedReceiveSlot(entry.wr_id);
  if (slot >= arena::SharedReceiveSlots(arena_->shape())) return;
  const SharedReceive receive = arena_->shared_receive(shard, slot);
  // A driver that died has returned it already.
  if (arena::StateOf(receive) != SharedReceiveState::kCompleted ||
      arena::GenerationOf(receive) != arena::WrIdGeneration(entry.wr_id)) {
    return;
  }
  if ((entry.flags & arena::kCompletionVoid) != 0 && !state_.IsBroken(shard)) {
    one_request_.Clear(shard);
    if (one_request_.AddReceive(arena_->shared_receive_request(shard, slot), /*wr_id=*/0).ok()) {
      const absl::Status posted = PostOne(shard, slot, one_request_.receives().front().sges);
      if (!posted.ok()) Refuse(shard, MessageOf(posted));
      return;
    }
  }
  SetSlotState(shard, slot, SharedReceiveState::kFree);
}

void SharedReceives::Load(uint32_t shard) {
  arena::ShardRecord& owner = arena_->shard(shard);
  uint32_t posted = 0, ambiguous = 0;
  for (uint32_t slot = 0; slot < arena::SharedReceiveSlots(arena_->shape()); ++slot) {
    const SharedReceiveState state = arena::StateOf(arena_->shared_receive(shard, slot));
    posted += state == SharedReceiveState::kPosted ? 1 : 0;
    ambiguous += state == SharedReceiveState::kAttempted ? 1 : 0;
  }
  owner.shared_receives_posted = posted;
  arena::StoreRelaxed(owner.shared_receives_unsure, ambiguous);
  state_.recovery.shared_receives_ambiguous += ambiguous;
  // An owner that has room for less than two may never post again (layout.md).
  if (state_.SharesReceives() && arena::SharedReceiveSlots(arena_->shape()) - ambiguous < 2) {
    owner.shared_receives_refused = 1;
  }
  state_.shards[shard].counters.receives_posted += posted;
  state_.shards[shard].counters.receives_committed += posted + ambiguous;
}

// Each ambiguous receive was posted, or its slot is free again. A resumed transaction that names a
// free slot posts it. Living owners count ambiguous receives as not posted. So this runs before
// they see any, and changes nothing if they did because an earlier driver could not ask the device.
void SharedReceives::Settle(uint32_t shard) {
  if (!state_.SharesReceives() || state_.IsBroken(shard)) return;
  arena::ShardRecord& owner = arena_->shard(shard);
  if (arena::LoadRelaxed(owner.shared_receives_unsure) != 0) return;
  int asked = 0;
  for (uint32_t slot = 0; slot < arena::SharedReceiveSlots(arena_->shape()); ++slot) {
    const SharedReceive receive = arena_->shared_receive(shard, slot);
    if (arena::StateOf(receive) != SharedReceiveState::kAttempted) continue;
    if (asked++ == kMostAsked) return;  // another process has written there: a driver leaves one
    const uint64_t wr_id = arena::PackSharedReceive(slot, arena::GenerationOf(receive));
    const absl::StatusOr<bool> queued =
        state_.objects->shared_receive_queues[shard]->IsQueued(wr_id);
    if (absl::IsUnimplemented(queued.status())) return;
    if (!queued.ok()) {
      owner.shared_receives_refused = 1;  // RefuseBroken ends its connections
      return;
    }
    ++state_.recovery.answers;
    ++state_.recovery.shared_receives_ambiguous;
    SetSlotState(shard, slot,
                 *queued || WasTaken(shard, wr_id) ? SharedReceiveState::kPosted
                                                   : SharedReceiveState::kFree);
    BATON_CRASH_POINT("driver-shared-settled");
  }
}

// Returns true if the receive's completion was taken from the queue and is not logged yet.
bool SharedReceives::WasTaken(uint32_t shard, uint64_t wr_id) const {
  const arena::PollSlot* const slots = arena_->poll_slots(shard);
  return std::any_of(slots, slots + arena::kPollSlots, [wr_id](const arena::PollSlot& slot) {
    return arena::LoadRelaxed(slot.wr_id) == wr_id;
  });
}

}  // namespace baton::driver
