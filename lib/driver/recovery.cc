#include "lib/driver/recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"

namespace baton::driver {

using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionRecord;
using arena::ConnectionState;
using arena::QueueCursors;
using verbs::CompletionStatus;

namespace {

// So many drivers may die at the same, one after the other and without progress.
constexpr uint32_t kFatalDeaths = 3;

uint32_t ConnectionAt(uint32_t at) { return (at & ~arena::kAtRecovery) - 1; }

}  // namespace

absl::Status Recovery::Adopt(absl::Span<const uint32_t> shards,
                             absl::Span<const uint32_t> candidates) {
  CompletionMover& completions = parts_.completions;
  ++state_.recovery.recoveries;
  state_.posts_held = true;
  parts_.commits.SetAdopted(shards);
  std::vector<std::pair<uint32_t, CompletionStatus>> failed;
  for (const uint32_t shard : shards) {
    state_.shards[shard] = ShardQueue(CompletionLog(*arena_, shard));
    state_.shards[shard].operated = true;
    // An owner that lives would pass over completions of a connection that arrives, until the
    // transaction is resumed that accepts it.
    state_.shards[shard].log.Hold(true);
    ReplayLog(shard, &failed);
    BATON_RETURN_IF_ERROR(state_.CheckLog(shard));
  }
  for (const uint32_t shard : shards) state_.objects->completion_queues[shard]->TakeOver();
  for (const uint32_t shard : shards) parts_.shared.Settle(shard);
  const std::vector<uint32_t> connections = Load(shards, candidates);
  for (const uint32_t shard : shards) CountDeath(shard);
  for (const uint32_t shard : shards) BATON_RETURN_IF_ERROR(SettlePollSlots(shard));
  for (const auto& [connection, status] : failed) parts_.teardown.EndAfterError(connection, status);
  const bool unfinished = std::any_of(shards.begin(), shards.end(),
                                      [this](uint32_t shard) { return IsUnfinished(shard); });
  for (const uint32_t connection : connections) RepeatLife(connection, unfinished);
  for (const uint32_t shard : shards) parts_.shared.RefuseBroken(shard);
  for (const uint32_t shard : shards) BATON_RETURN_IF_ERROR(completions.DrainCompletions(shard));
  state_.posts_held = false;
  for (const uint32_t connection : connections) SettleQueues(connection);
  for (const uint32_t shard : shards) ResumeTransaction(shard);
  for (const uint32_t connection : connections) FailArriving(connection);
  for (const uint32_t shard : shards) state_.shards[shard].log.Hold(false);
  for (const uint32_t connection : connections) PostDeferred(connection);
  for (const uint32_t shard : shards) {
    BATON_RETURN_IF_ERROR(completions.PollCompletions(shard).status());
  }
  for (const uint32_t shard : shards) EndRecovery(shard);
  BATON_CRASH_POINT("driver-recovered");
  return absl::OkStatus();
}

// Returns what differs after anything that is done for the connection, or for the transactions of a
// shard.
uint64_t Recovery::ProgressOf(uint32_t shard, uint32_t at) const {
  const arena::ShardRecord& record = arena_->shard(shard);
  if (at == arena::kAtTransaction) return record.commit_head;
  const uint32_t index = ConnectionAt(at);
  if (index >= state_.connection_slots) return 0;
  const ConnectionRecord& connection = state_.record(index);
  // A message that the peer sends meanwhile does not advance a transaction.
  const uint64_t completed =
      IsUnfinished(shard) ? 0 : connection.send.completed + connection.receive.completed;
  return record.transactions + completed + connection.state +
         (uint64_t{connection.generation} << 32);
}

// Counts the death of the driver before this one, if it was at something. Fails that alone if
// drivers died at it as often as that may be.
void Recovery::CountDeath(uint32_t shard) {
  arena::ShardRecord& record = arena_->shard(shard);
  const uint32_t at = record.at;
  state_.SetAt(shard, 0);
  if (at != 0) {
    const uint64_t progress = ProgressOf(shard, at);
    const bool same = (at & ~arena::kAtRecovery) == (record.fatal & ~arena::kAtRecovery) &&
                      progress == record.fatal_progress;
    if (!same) record.fatal_deaths = 0;
    arena::OrderForCrash();
    record.fatal = at;
    record.fatal_progress = progress;
    arena::OrderForCrash();
    ++record.fatal_deaths;
    BATON_CRASH_POINT("driver-death-counted");
  }
  if (record.fatal_deaths < kFatalDeaths) return;
  if (ProgressOf(shard, record.fatal) != record.fatal_progress) return;
  if (record.fatal == arena::kAtTransaction) {
    state_.shards[shard].unreadable = record.fatal_progress;
    return;
  }
  const uint32_t index = ConnectionAt(record.fatal);
  if (index >= state_.connection_slots) return;
  if (state_.Operates(state_.ShardOf(state_.record(index)))) parts_.teardown.Condemn(index);
}

// A recovery that comes to its end has died of nothing that it did.
void Recovery::EndRecovery(uint32_t shard) {
  arena::ShardRecord& record = arena_->shard(shard);
  state_.SetAt(shard, 0);
  if ((record.fatal & arena::kAtRecovery) != 0) record.fatal_deaths = 0;
}

// A driver that dies anywhere else in a recovery has died at no connection.
template <typename Work>
void Recovery::DoAt(uint32_t index, const Work& work) {
  const uint32_t shard = state_.ShardOf(state_.record(index));
  state_.DoAt(shard, arena::AtConnection(index) | arena::kAtRecovery, [&] {
    BATON_CRASH_POINT("driver-recovers-connection");
    work();
  });
}

void Recovery::RepeatLife(uint32_t index, bool unfinished) {
  DoAt(index, [&] { RepeatLifeOf(index, unfinished); });
}

void Recovery::SettleQueues(uint32_t index) {
  DoAt(index, [&] { SettleQueuesOf(index); });
}

void Recovery::PostDeferred(uint32_t index) {
  DoAt(index, [&] { parts_.poster.PostAllDeferred(index); });
}

// Appended entries count, published or not. The consequences of each entry are repeated.
void Recovery::ReplayLog(uint32_t shard,
                         std::vector<std::pair<uint32_t, CompletionStatus>>* failed) {
  CompletionLog& log = state_.shards[shard].log;
  const uint64_t published = log.tail();
  log.FindTail();
  for (uint64_t i = published; i < log.tail(); ++i) {
    const CompletionEntry entry = arena::CopyOnce(arena_->completion(shard, i));
    if (entry.connection >= state_.slots.size()) {
      return log.Break("it has a completion of a connection that does not exist");
    }
    ConnectionRecord& connection = state_.record(entry.connection);
    parts_.shared.NoteLogged(shard, entry.wr_id);
    if (connection.generation != arena::GenerationOf(entry)) continue;
    if (!arena::IsSharedReceive(entry.wr_id)) ReplayEntry(entry);
    const bool request = CompletionKind(entry.kind) == CompletionKind::kSend ||
                         CompletionKind(entry.kind) == CompletionKind::kReceive;
    const auto status = CompletionStatus(entry.status);
    if (request && status != CompletionStatus::kSuccess && IsLive(connection)) {
      failed->emplace_back(entry.connection, status);
    }
    BATON_CRASH_POINT("driver-entry-replayed");
  }
}

void Recovery::ReplayEntry(const CompletionEntry& entry) {
  ConnectionRecord& connection = state_.record(entry.connection);
  const ConnectionState state = StateOf(connection);
  switch (CompletionKind(entry.kind)) {
    case CompletionKind::kSend:
    case CompletionKind::kReceive: {
      const bool receive = CompletionKind(entry.kind) == CompletionKind::kReceive;
      QueueCursors& cursors = receive ? connection.receive : connection.send;
      arena::StoreRelease(cursors.completed, std::max(cursors.completed, entry.sequence + 1));
      arena::StoreRelease(cursors.posted, std::max(cursors.posted, cursors.completed));
      break;
    }
    case CompletionKind::kConnectRequest:
      if (state == ConnectionState::kFree) SetState(connection, ConnectionState::kRequested);
      break;
    case CompletionKind::kEstablished:
      if (state == ConnectionState::kConnecting) {
        SetState(connection, ConnectionState::kEstablished);
      }
      break;
    case CompletionKind::kDisconnected:
    case CompletionKind::kConnectFailed:
      if (state == ConnectionState::kDraining) SetState(connection, ConnectionState::kClosed);
      break;
  }
}

// Derives this process's private state from the records and logs. Returns the connections of these
// shards.
std::vector<uint32_t> Recovery::Load(absl::Span<const uint32_t> shards,
                                     absl::Span<const uint32_t> candidates) {
  for (const uint32_t shard : shards) {
    arena_->shard(shard).connections = 0;
    state_.shards[shard].counters.transactions = arena_->shard(shard).transactions;
    state_.shards[shard].counters.bytes_sent = arena_->shard(shard).bytes_sent;
    LoadSpares(shard);
    parts_.shared.Load(shard);
  }
  std::vector<uint32_t> connections;
  for (const uint32_t i : candidates) {
    const bool free = StateOf(state_.record(i)) == ConnectionState::kFree;
    if (free || std::find(shards.begin(), shards.end(), state_.record(i).shard) == shards.end()) {
      continue;
    }
    LoadSlot(i);
    LoadCounters(i);
    connections.push_back(i);
  }
  return connections;
}

void Recovery::LoadSpares(uint32_t shard) {
  for (uint32_t i = 0; i < arena::kSpares; ++i) {
    arena::SpareRecord& spare = arena_->spare(shard, i);
    const uint32_t number = arena::LoadRelaxed(spare.owner);  // connection + 1
    if (number == 0) continue;
    if (number > state_.slots.size()) {
      spare.owner = 0;
      continue;
    }
    const ConnectionRecord& owner = state_.record(number - 1);
    if (owner.generation != spare.generation || StateOf(owner) == ConnectionState::kFree ||
        StateOf(owner) == ConnectionState::kClosed) {
      spare.owner = 0;
      continue;
    }
    ++state_.shards[shard].spares_in_use;
    state_.slots[number - 1].receives_held = true;
  }
}

void Recovery::LoadSlot(uint32_t index) {
  const ConnectionRecord& connection = state_.record(index);
  const verbs::QueuePair* const queue_pair = state_.device_of(index).queue_pair.get();
  if (queue_pair != nullptr) state_.by_queue_pair[queue_pair->number()] = index;
  // Its queue pair may be destroyed while some of its completions are not logged yet.
  if (connection.qp_number != 0) state_.by_queue_pair.try_emplace(connection.qp_number, index);
  ++state_.connection_count;
  ++arena_->shard(state_.ShardOf(connection)).connections;
  state_.slots[index].end_reason = "its driver died";
  state_.slots[index].sends_held = Outstanding(connection.send_markers) != 0;
  state_.shards[state_.ShardOf(connection)].markers +=
      Outstanding(connection.send_markers) + Outstanding(connection.receive_markers);
}

// Counts only outstanding requests: reports use the differences.
void Recovery::LoadCounters(uint32_t index) {
  const ConnectionRecord& connection = state_.record(index);
  ShardCounters& counters = state_.shards[state_.ShardOf(connection)].counters;
  const QueueCursors& send = connection.send;
  const QueueCursors& receive = connection.receive;
  counters.sends_posted += send.posted - send.completed;
  const bool live = IsLive(connection);
  counters.sends_committed += (live ? send.committed : send.posted) - send.completed;
  if (state_.SharesReceives()) return;
  counters.receives_posted += receive.posted - receive.completed;
  counters.receives_committed += (live ? receive.committed : receive.posted) - receive.completed;
}

// A completion queue is first in, first out. So completions in slots that were not consumed are the
// next that it returns, and one more poll identifies them. The slot that was filled last may be
// torn; then its completion was not consumed.
absl::Status Recovery::SettlePollSlots(uint32_t shard) {
  arena::PollSlot* const slots = arena_->poll_slots(shard);
  const auto filled = [&](uint32_t i) { return slots[i].wr_id != arena::kInvalidWrId; };
  // Empties slots from the last to `first`, so that a successor of a driver killed in between can
  // do the rest.
  const auto forget = [&](uint32_t first, uint32_t last) {
    for (uint32_t i = last; i-- > first;) {
      arena::StoreRelease(slots[i].wr_id, arena::kInvalidWrId);
      BATON_CRASH_POINT("driver-slot-forgotten");
    }
  };
  uint32_t next = 0;
  for (uint32_t i = 0; i < arena::kPollSlots; ++i) {
    if (!filled(i)) continue;
    next = i + 1;
    for (uint32_t j = 0; j < i; ++j) {
      if (slots[j].wr_id == slots[i].wr_id) forget(j, i);
    }
  }
  if (next == arena::kPollSlots) {
    return absl::DataLossError(
        absl::StrCat("shard ", shard, ": its drivers died ", next - arena::kPollSlots / 2,
                     " times between a poll and what it gave, and there is no room for another"));
  }
  verbs::CompletionQueue& queue = *state_.objects->completion_queues[shard];
  auto* const taken = reinterpret_cast<verbs::Completion*>(slots);
  BATON_ASSIGN_OR_RETURN(const int count, queue.Take({taken + next, 1}));
  BATON_CRASH_POINT("driver-settling-polled");
  if (count == 1) {
    for (uint32_t i = 0; i < next; ++i) {
      if (slots[i].wr_id == slots[next].wr_id) forget(i, next);
    }
    ++next;
  }
  for (uint32_t i = 0; i < next; ++i) {
    if (!filled(i)) continue;
    verbs::Completion completion;
    queue.Read({taken + i, 1}, &completion);
    parts_.completions.LogCompletion(shard, completion);
  }
  // The same check as in PollCompletions.
  BATON_RETURN_IF_ERROR(state_.CheckLog(shard));
  for (uint32_t i = 0; i < next; ++i) arena::StoreRelease(slots[i].wr_id, arena::kInvalidWrId);
  return absl::OkStatus();
}

// `unfinished`: a transaction will be resumed. An accept is answered with its transaction, and may
// wait for `baton-driver` after that.
void Recovery::RepeatLifeOf(uint32_t index, bool unfinished) {
  ConnectionRecord& connection = state_.record(index);
  DeviceObjects::Connection& device = state_.device_of(index);
  switch (StateOf(connection)) {
    case ConnectionState::kConnecting:
      // An accept that had no effect is repeated with its transaction.
      if (unfinished && connection.listener_port != 0 && device.queue_pair &&
          device.queue_pair->state() == verbs::QueuePairState::kInit) {
        connection.answered = 0;
      }
      break;
    case ConnectionState::kEstablished:
      parts_.teardown.EndIfFailedBefore(index);
      break;
    case ConnectionState::kDraining:
      if (connection.abandoned != 0 && !IsCondemned(connection)) {
        parts_.teardown.Abandon(index, "");
      } else {
        parts_.teardown.EndConnection(index);
      }
      break;
    default:
      break;
  }
}

// This driver cannot finish the transaction that accepts the connection: the shard that it came
// from has another owner now.
void Recovery::FailArriving(uint32_t index) {
  ConnectionRecord& connection = state_.record(index);
  if (connection.arriving == 0) return;
  parts_.teardown.StartDraining(
      index, CompletionStatus::kGeneralError,
      "its owner died while it accepted the connection into another shard, and they have "
      "different owners now");
  arena::StoreRelease(connection.arriving, uint8_t{0});
}

void Recovery::SettleQueuesOf(uint32_t index) {
  const ConnectionRecord& connection = state_.record(index);
  const ConnectionState state = StateOf(connection);
  if (state == ConnectionState::kDraining) return SettleEnding(index);
  if (state != ConnectionState::kConnecting && state != ConnectionState::kEstablished) return;
  state_.recovery.receives_ambiguous += MaybePosted(connection, true);
  state_.recovery.sends_ambiguous += MaybePosted(connection, false);
  parts_.teardown.ResolveRequests(index, true);
  if (state_.slots[index].receives_held) parts_.poster.DeliverSpares(index);
  parts_.teardown.ResolveRequests(index, false);
  parts_.poster.PostAllDeferred(index);
}

// Asks a device that can say what is queued only now, because all completions are logged by now.
void Recovery::SettleEnding(uint32_t index) {
  if (IsCondemned(state_.record(index))) return;
  for (const bool receive : {true, false}) parts_.teardown.ResolveRequests(index, receive);
  parts_.teardown.FinishDraining(index);
}

bool Recovery::IsUnfinished(uint32_t shard) const {
  const arena::ShardRecord& record = arena_->shard(shard);
  return record.apply_begun == record.commit_head &&
         arena::OwnershipEpoch(record.owner.ownership) != 0;
}

void Recovery::ResumeTransaction(uint32_t shard) {
  if (!IsUnfinished(shard)) return;
  // If its writer has made the transaction invalid meanwhile, the next ApplyNext() finds it, too.
  absl::Status error;
  const CommitOutcome outcome = parts_.commits.ApplyNext(shard, &error);
  if (outcome != CommitOutcome::kInvalid) ++state_.recovery.transactions_resumed;
}

}  // namespace baton::driver
