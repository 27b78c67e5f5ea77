// Receives that the connections of a shard share (layout.md, "Shared receives").
#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/poison.h"
#include "lib/driver/queue_driver.h"

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

// Posts one at a time, so that a dead driver leaves at most one receive that may be posted. That
// one is out of use until it completes. The slots of a broken queue stay free: the shard's
// connections end.
void QueueDriver::PostSharedReceives(uint32_t shard, const TransactionPart& part) {
  if (IsBroken(shard)) return;
  const auto named = std::bit_cast<arena::SharedReceivesEntry>(part.entry);
  const auto receives = reader_->transaction().receives.subspan(part.first_receive, named.count);
  for (uint32_t i = 0; i < named.count; ++i) {
    const absl::Status posted = PostSharedReceive(shard, named.slots[i], receives[i].sges);
    if (!posted.ok()) return RefuseShared(shard, MessageOf(posted));
  }
  ArmLimit(shard);
}

// A receive that the device refuses may be posted all the same, so its slot stays kAttempted.
absl::Status QueueDriver::PostSharedReceive(uint32_t shard, uint32_t slot,
                                            absl::Span<const verbs::ScatterGather> sges) {
  ShardCounters& counters = shards_[shard].counters;
  ++counters.receives_committed;
  arena::ShardRecord& owner = arena_->shard(shard);
  SharedReceive& receive = arena_->shared_receive(shard, slot);
  const uint32_t generation = arena::GenerationOf(receive) + 1;
  const verbs::ReceiveRequest posted = {arena::PackSharedReceive(slot, generation), sges};
  arena::StoreRelease(receive.word,
                      arena::PackSharedReceiveState(SharedReceiveState::kAttempted, generation));
  BATON_CRASH_POINT("driver-before-shared-post");
  size_t taken = 0;
  absl::Status status = objects_->shared_receive_queues[shard]->PostReceive({&posted, 1}, &taken);
  BATON_CRASH_POINT("driver-after-shared-post");
  if (!status.ok()) {
    owner.shared_receives_refused = 1;
    arena::StoreRelaxed(owner.shared_receives_unsure, owner.shared_receives_unsure + 1);
    return status;
  }
  SetSharedReceive(shard, slot, SharedReceiveState::kPosted);
  arena::StoreRelaxed(owner.shared_receives_posted, owner.shared_receives_posted + 1);
  ++counters.receives_posted;
  BATON_CRASH_POINT("driver-shared-posted");
  return absl::OkStatus();
}

void QueueDriver::SetSharedReceive(uint32_t shard, uint32_t slot, SharedReceiveState state) {
  SharedReceive& receive = arena_->shared_receive(shard, slot);
  arena::StoreRelease(receive.word,
                      arena::PackSharedReceiveState(state, arena::GenerationOf(receive)));
}

// Asks the device to report when a quarter of the receives is left. It is asked again only when
// more than half are posted.
void QueueDriver::ArmLimit(uint32_t shard) {
  ShardQueue& queue = shards_[shard];
  const uint32_t depth = arena_->shape().shared_receive_queue_depth;
  const uint32_t posted = arena_->shard(shard).shared_receives_posted;
  if (queue.limit_armed || IsBroken(shard) || depth < 4 || posted <= depth / 2) return;
  if (queue.low_ns != 0 && MonotonicNanoseconds() - queue.low_ns < kLowPauseNs) return;
  // A device that cannot report this is used all the same.
  (void)objects_->shared_receive_queues[shard]->ArmLimit(depth / 4);
  queue.limit_armed = true;
}

// A queue that refuses a receive although it has room is broken: its connections would wait for
// ever. No more connections join it. Pending requests may still be accepted into another shard.
void QueueDriver::RefuseShared(uint32_t shard, std::string_view why) {
  arena_->shard(shard).shared_receives_refused = 1;
  BATON_CRASH_POINT("driver-shared-refused");
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    const ConnectionRecord& connection = record(index);
    if (connection.shard != shard || StateOf(connection) == ConnectionState::kRequested) continue;
    StartDraining(index, CompletionStatus::kGeneralError,
                  absl::StrCat(View(kBroken), ": ", View(why)));
  }
}

bool QueueDriver::IsBroken(uint32_t shard) const {
  return arena_->shard(shard).shared_receives_refused != 0;
}

bool QueueDriver::AllBroken() const {
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    if (!IsBroken(i)) return false;
  }
  return true;
}

absl::Status QueueDriver::BrokenQueue() { return absl::UnavailableError(View(kBroken)); }

// Ends the connections of a broken queue. A dead driver may not have ended all of them, or its
// death was the one that broke the queue.
void QueueDriver::RefuseBroken(uint32_t shard) {
  if (IsBroken(shard)) {
    RefuseShared(shard, "drivers died, and what they may have posted is out of use or unknown");
  }
}

// ---------------------------------------------------------------- completions

// Returns whether the slot still waits for this completion.
bool QueueDriver::IsOutstanding(uint32_t shard, uint64_t wr_id) const {
  if (!arena::IsSharedReceive(wr_id)) return false;
  const uint32_t slot = arena::SharedReceiveSlot(wr_id);
  if (slot >= arena::SharedReceiveSlots(arena_->shape())) return false;
  const SharedReceive receive = arena_->shared_receive(shard, slot);
  const SharedReceiveState state = arena::StateOf(receive);
  return arena::GenerationOf(receive) == arena::WrIdGeneration(wr_id) &&
         (state == SharedReceiveState::kAttempted || state == SharedReceiveState::kPosted);
}

void QueueDriver::NoteSharedReceive(uint32_t shard, uint32_t slot, SharedReceiveState next) {
  arena::ShardRecord& owner = arena_->shard(shard);
  const bool sure =
      arena::StateOf(arena_->shared_receive(shard, slot)) == SharedReceiveState::kPosted;
  uint32_t& count = sure ? owner.shared_receives_posted : owner.shared_receives_unsure;
  SetSharedReceive(shard, slot, next);
  arena::StoreRelaxed(count, count - 1);
  BATON_CRASH_POINT("driver-shared-completed");
  ShardCounters& counters = shards_[shard].counters;
  ++counters.receives_completed;
  if (!sure) ++counters.receives_posted;
}

// Shared receives complete in any order. Each slot records whether its completion was logged.
void QueueDriver::LogSharedReceive(uint32_t shard, const verbs::Completion& completion) {
  const uint64_t wr_id = completion.wr_id;   // other processes of a native service can write it
  if (!IsOutstanding(shard, wr_id)) return;  // a driver that died has logged it already
  const uint32_t index = FindQueuePair(completion.qp_number);
  const bool ended = index == DriverObserver::kNoConnection ||
                     StateOf(record(index)) == ConnectionState::kClosed ||
                     record(index).shard != shard;
  // If the connection was given up, its owner gets no entry.
  const uint32_t slot = arena::SharedReceiveSlot(wr_id);
  if (ended) return NoteSharedReceive(shard, slot, SharedReceiveState::kFree);
  ConnectionRecord& connection = record(index);
  CompletionEntry entry = {};
  entry.wr_id = wr_id;
  FillEntry(arena::CompletionKind::kReceive, completion, &entry);
  entry.connection = index;
  entry.generation = connection.generation;
  entry.sequence = slot;
  entry.tag = arena_->shared_receive_request(shard, slot).tag;
  Spoil(PoisonLevel(connection.poison), &entry);
  if (!shards_[shard].log.Append(entry)) return;
  NoteSharedReceive(shard, slot, SharedReceiveState::kCompleted);
  ++connection.receive.completed;
  connection.bytes_received += completion.byte_len;
  shards_[shard].counters.bytes_received += completion.byte_len;
  if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    EndAfterError(index, completion.status);
  }
}

// Called when the completion was acknowledged. If it was void, posts the receive again with its
// buffer, because the application still regards it as posted.
void QueueDriver::ReturnSharedReceive(uint32_t shard, const CompletionEntry& entry) {
  const uint32_t slot = arena::SharedReceiveSlot(entry.wr_id);
  if (slot >= arena::SharedReceiveSlots(arena_->shape())) return;
  const SharedReceive receive = arena_->shared_receive(shard, slot);
  // A driver that died has returned it already.
  if (arena::StateOf(receive) != SharedReceiveState::kCompleted ||
      arena::GenerationOf(receive) != arena::WrIdGeneration(entry.wr_id)) {
    return;
  }
  if ((entry.flags & arena::kCompletionVoid) != 0 && !IsBroken(shard)) {
    one_request_.Clear();
    if (one_request_.AddReceive(arena_->shared_receive_request(shard, slot), /*wr_id=*/0).ok()) {
      const absl::Status posted =
          PostSharedReceive(shard, slot, one_request_.receives().front().sges);
      if (!posted.ok()) RefuseShared(shard, MessageOf(posted));
      return;
    }
  }
  SetSharedReceive(shard, slot, SharedReceiveState::kFree);
}

// ---------------------------------------------------------------- ends, recovery

// Ends connections of `ending_`: a poll found the completion queue empty after their last
// completion was in it. Destroys their queue pairs before it logs their ends, because the
// application may use the buffers then.
void QueueDriver::FinishEnding(uint32_t shard) {
  size_t kept = 0;
  const size_t count = ending_.size();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t index = ending_[i];
    if (record(index).shard != shard) {
      ending_[kept++] = index;
      continue;
    }
    slots_[index].ending = false;
    if (StateOf(record(index)) != ConnectionState::kDraining || !Drained(index)) continue;
    DropObjects(index);
    FinishDraining(index);
  }
  ending_.resize(kept);
}

void QueueDriver::LoadSharedReceives(uint32_t shard) {
  arena::ShardRecord& owner = arena_->shard(shard);
  uint32_t posted = 0, unsure = 0;
  for (uint32_t slot = 0; slot < arena::SharedReceiveSlots(arena_->shape()); ++slot) {
    const SharedReceiveState state = arena::StateOf(arena_->shared_receive(shard, slot));
    posted += state == SharedReceiveState::kPosted ? 1 : 0;
    unsure += state == SharedReceiveState::kAttempted ? 1 : 0;
  }
  owner.shared_receives_posted = posted;
  arena::StoreRelaxed(owner.shared_receives_unsure, unsure);
  recovery_.shared_receives_ambiguous += unsure;
  // An owner that has room for less than two may never post again (layout.md).
  if (SharesReceives() && arena::SharedReceiveSlots(arena_->shape()) - unsure < 2) {
    owner.shared_receives_refused = 1;
  }
  shards_[shard].counters.receives_posted += posted;
  shards_[shard].counters.receives_committed += posted + unsure;
}

// Resolves receives that a dead driver may have posted, if the device can say: each was posted, or
// its slot is free again. A resumed transaction that names a free slot posts it. Living owners
// count unsure receives as not posted. So this runs before they see any, and changes nothing if
// they did because an earlier driver could not ask the device.
void QueueDriver::SettleSharedReceives(uint32_t shard) {
  if (!SharesReceives() || IsBroken(shard)) return;
  arena::ShardRecord& owner = arena_->shard(shard);
  if (arena::LoadRelaxed(owner.shared_receives_unsure) != 0) return;
  int asked = 0;
  for (uint32_t slot = 0; slot < arena::SharedReceiveSlots(arena_->shape()); ++slot) {
    const SharedReceive receive = arena_->shared_receive(shard, slot);
    if (arena::StateOf(receive) != SharedReceiveState::kAttempted) continue;
    if (asked++ == kMostAsked) return;  // another process has written there: a driver leaves one
    const uint64_t wr_id = arena::PackSharedReceive(slot, arena::GenerationOf(receive));
    const absl::StatusOr<bool> queued = objects_->shared_receive_queues[shard]->IsQueued(wr_id);
    if (absl::IsUnimplemented(queued.status())) return;
    if (!queued.ok()) {
      owner.shared_receives_refused = 1;  // RefuseBroken ends its connections
      return;
    }
    ++recovery_.answers;
    ++recovery_.shared_receives_ambiguous;
    SetSharedReceive(shard, slot,
                     *queued || WasTaken(shard, wr_id) ? SharedReceiveState::kPosted
                                                       : SharedReceiveState::kFree);
    BATON_CRASH_POINT("driver-shared-settled");
  }
}

// Returns true if the receive's completion was taken from the queue and is not logged yet.
bool QueueDriver::WasTaken(uint32_t shard, uint64_t wr_id) const {
  const arena::PollSlot* const slots = arena_->poll_slots(shard);
  return std::any_of(slots, slots + arena::kPollSlots, [wr_id](const arena::PollSlot& slot) {
    return arena::LoadRelaxed(slot.wr_id) == wr_id;
  });
}

}  // namespace baton::driver
