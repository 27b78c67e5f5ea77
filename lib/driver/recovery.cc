// How a driver takes the place of a dead one. layout.md, "When a driver dies", has the algorithm
// and why each step of it can be repeated.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/queue_driver.h"

namespace baton::driver {
namespace {

// The time in which a device finishes the packet that it was processing when the queue pair went to
// the error state. That work was seen interrupted for milliseconds (rdma.md, "Reset").
constexpr uint64_t kAtWorkNs = 1'000'000'000;

using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionRecord;
using arena::ConnectionState;
using arena::Direction;
using arena::MarkerCursors;
using arena::QueueCursors;
using arena::SpareRecord;
using arena::SpareState;
using verbs::CompletionStatus;

MarkerCursors& MarkersOf(ConnectionRecord& record, bool receive) {
  return receive ? record.receive_markers : record.send_markers;
}

uint8_t Outstanding(const MarkerCursors& markers) {
  return static_cast<uint8_t>(markers.begun - markers.completed);
}

uint64_t LengthOf(const arena::WorkRequest& request) {
  uint64_t length = 0;
  for (uint32_t i = 0; i < std::min<uint32_t>(request.sge_count, arena::kMaxSges); ++i) {
    length += arena::RangeOf(request, i).length;
  }
  return length;
}

}  // namespace

// ---------------------------------------------------------------- beginning

absl::StatusOr<std::unique_ptr<QueueDriver>> QueueDriver::Recover(
    arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
    std::shared_ptr<DeviceObjects> objects) {
  std::unique_ptr<QueueDriver> driver = CreateBeside(arena, device, observer, std::move(objects));
  driver->sole_ = true;
  std::vector<uint32_t> all(arena->shape().shards);
  std::iota(all.begin(), all.end(), 0);
  BATON_RETURN_IF_ERROR(driver->Adopt(all));
  return driver;
}

std::unique_ptr<QueueDriver> QueueDriver::CreateBeside(arena::Arena* arena, verbs::Device* device,
                                                       DriverObserver* observer,
                                                       std::shared_ptr<DeviceObjects> objects) {
  std::unique_ptr<QueueDriver> driver(new QueueDriver(arena, device, observer, std::move(objects)));
  driver->sole_ = false;
  return driver;
}

absl::Status QueueDriver::Adopt(absl::Span<const uint32_t> shards) {
  std::vector<uint32_t> all(slots_.size());
  std::iota(all.begin(), all.end(), 0);
  return Adopt(shards, all);
}

absl::Status QueueDriver::Adopt(absl::Span<const uint32_t> shards,
                                absl::Span<const uint32_t> candidates) {
  ++recovery_.recoveries;
  posts_held_ = true;
  if (!sole_) reader_->SetAdopted(shards);
  std::vector<std::pair<uint32_t, CompletionStatus>> failed;
  for (const uint32_t shard : shards) {
    shards_[shard] = ShardQueue(CompletionLog(*arena_, shard));
    shards_[shard].operated = true;
    ReplayLog(shard, &failed);
    BATON_RETURN_IF_ERROR(CheckLog(shard));
  }
  for (const uint32_t shard : shards) objects_->completion_queues[shard]->TakeOver();
  for (const uint32_t shard : shards) SettleSharedReceives(shard);
  const std::vector<uint32_t> connections = Load(shards, candidates);
  for (const uint32_t shard : shards) BATON_RETURN_IF_ERROR(SettlePollSlots(shard));
  for (const auto& [connection, status] : failed) EndAfterError(connection, status);
  for (const uint32_t connection : connections) RepeatLife(connection);
  for (const uint32_t shard : shards) RefuseBroken(shard);
  for (const uint32_t shard : shards) BATON_RETURN_IF_ERROR(DrainCompletions(shard));
  posts_held_ = false;
  for (const uint32_t connection : connections) SettleQueues(connection);
  for (const uint32_t shard : shards) ResumeTransaction(shard);
  for (const uint32_t connection : connections) FailArriving(connection);
  for (const uint32_t connection : connections) PostAllDeferred(connection);
  for (const uint32_t shard : shards) BATON_RETURN_IF_ERROR(PollCompletions(shard).status());
  BATON_CRASH_POINT("driver-recovered");
  return absl::OkStatus();
}

std::vector<uint32_t> QueueDriver::AcceptTargets(uint32_t shard) const {
  std::vector<uint32_t> targets;
  const uint64_t head = arena_->shard(shard).commit_head;
  const uint64_t pending = PendingEntries(shard);
  for (uint64_t i = 0; i < pending; ++i) {
    const arena::CommitEntry entry = arena::CopyOnce(
        arena_->commit_entry(shard, arena::OwnershipEpoch(arena_->shard(shard).owner.ownership),
                             arena::CursorIndex(head) + i));
    const bool accepts = arena::CommitKind(entry.kind) == arena::CommitKind::kAccept;
    if (accepts && entry.target_shard != shard && entry.target_shard < shards_.size()) {
      targets.push_back(entry.target_shard);
    }
  }
  return targets;
}

void QueueDriver::Leave(uint32_t shard) {
  shards_[shard].operated = false;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (StateOf(record(i)) != ConnectionState::kFree && record(i).shard == shard) ForgetSlot(i);
  }
}

// Appended entries count, published or not. The consequences of each entry are repeated.
void QueueDriver::ReplayLog(uint32_t shard,
                            std::vector<std::pair<uint32_t, CompletionStatus>>* failed) {
  CompletionLog& log = shards_[shard].log;
  const uint64_t published = log.tail();
  log.FindTail();
  for (uint64_t i = published; i < log.tail(); ++i) {
    const CompletionEntry entry = arena::CopyOnce(arena_->completion(shard, i));
    if (entry.connection >= slots_.size()) {
      return log.Break("it has a completion of a connection that does not exist");
    }
    ConnectionRecord& connection = record(entry.connection);
    if (IsOutstanding(shard, entry.wr_id)) {
      SetSharedReceive(shard, arena::SharedReceiveSlot(entry.wr_id),
                       arena::SharedReceiveState::kCompleted);
    }
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

void QueueDriver::ReplayEntry(const CompletionEntry& entry) {
  ConnectionRecord& connection = record(entry.connection);
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
std::vector<uint32_t> QueueDriver::Load(absl::Span<const uint32_t> shards,
                                        absl::Span<const uint32_t> candidates) {
  for (const uint32_t shard : shards) {
    arena_->shard(shard).connections = 0;
    shards_[shard].counters.transactions = arena_->shard(shard).transactions;
    shards_[shard].counters.bytes_sent = arena_->shard(shard).bytes_sent;
    LoadRequests(shard);
    LoadSpares(shard);
    LoadSharedReceives(shard);
  }
  std::vector<uint32_t> connections;
  for (const uint32_t i : candidates) {
    const bool free = StateOf(record(i)) == ConnectionState::kFree;
    if (free && sole_) ReclaimSlot(i);
    if (free || std::find(shards.begin(), shards.end(), record(i).shard) == shards.end()) continue;
    LoadSlot(i);
    LoadCounters(i);
    connections.push_back(i);
  }
  if (sole_) {
    LoadGrants();
    LoadEvent();
  }
  return connections;
}

void QueueDriver::LoadRequests(uint32_t shard) {
  const CompletionLog& log = shards_[shard].log;
  for (uint64_t i = log.oldest(); i < log.tail(); ++i) {
    const CompletionEntry entry = arena::CopyOnce(arena_->completion(shard, i));
    if (CompletionKind(entry.kind) == CompletionKind::kConnectRequest &&
        entry.connection < slots_.size() &&
        record(entry.connection).generation == arena::GenerationOf(entry)) {
      slots_[entry.connection].request_in_log = true;
    }
  }
}

void QueueDriver::LoadSpares(uint32_t shard) {
  for (uint32_t i = 0; i < arena::kSpares; ++i) {
    SpareRecord& spare = arena_->spare(shard, i);
    const uint32_t number = arena::LoadRelaxed(spare.owner);  // connection + 1
    if (number == 0) continue;
    if (number > slots_.size()) {
      spare.owner = 0;
      continue;
    }
    const ConnectionRecord& owner = record(number - 1);
    if (owner.generation != spare.generation || StateOf(owner) == ConnectionState::kFree ||
        StateOf(owner) == ConnectionState::kClosed) {
      spare.owner = 0;
      continue;
    }
    ++shards_[shard].spares_in_use;
    slots_[number - 1].receives_held = true;
  }
}

void QueueDriver::LoadSlot(uint32_t index) {
  const ConnectionRecord& connection = record(index);
  if (device_of(index).queue_pair) by_queue_pair_[device_of(index).queue_pair->number()] = index;
  // Its queue pair may be destroyed while some of its completions are not logged yet.
  if (connection.qp_number != 0) by_queue_pair_.try_emplace(connection.qp_number, index);
  ++connection_count_;
  ++arena_->shard(ShardOf(connection)).connections;
  slots_[index].end_reason = "its driver died";
  slots_[index].sends_held = Outstanding(connection.send_markers) != 0;
  shards_[ShardOf(connection)].markers +=
      Outstanding(connection.send_markers) + Outstanding(connection.receive_markers);
}

// Frees the slot of a connection that never existed or is over.
void QueueDriver::ReclaimSlot(uint32_t index) {
  device_of(index).id.reset();
  device_of(index).queue_pair.reset();
  if (!slots_[index].request_in_log) free_slots_.push_back(index);
}

void QueueDriver::ForgetSlot(uint32_t index) {
  --connection_count_;
  std::erase(abandoned_, index);
  std::erase(ending_, index);
  const auto known = by_queue_pair_.find(record(index).qp_number);
  if (known != by_queue_pair_.end() && known->second == index) by_queue_pair_.erase(known);
  slots_[index] = Slot{};
}

// Counts only outstanding requests: reports use the differences.
void QueueDriver::LoadCounters(uint32_t index) {
  const ConnectionRecord& connection = record(index);
  ShardCounters& counters = shards_[ShardOf(connection)].counters;
  const QueueCursors& send = connection.send;
  const QueueCursors& receive = connection.receive;
  counters.sends_posted += send.posted - send.completed;
  const bool live = IsLive(connection);
  counters.sends_committed += (live ? send.committed : send.posted) - send.completed;
  if (SharesReceives()) return;
  counters.receives_posted += receive.posted - receive.completed;
  counters.receives_committed += (live ? receive.committed : receive.posted) - receive.completed;
}

// A grant exists only if both its region and its record do. Clears the one without the other.
void QueueDriver::LoadGrants() {
  for (uint32_t i = 0; i < arena::kGrants; ++i) {
    arena::GrantRecord& grant = arena_->grant(i);
    if (grant.length == 0) objects_->grants[i] = {};
    if (objects_->grants[i].is_free()) arena::StoreRelease(grant.length, uint64_t{0});
  }
}

// A connection request that had a slot in state kRequested keeps it. Any other is handled anew.
void QueueDriver::LoadEvent() {
  if (!objects_->has_event || !objects_->event.new_id) return;
  verbs::ConnectionId& id = *objects_->event.new_id;
  const auto context = reinterpret_cast<uintptr_t>(id.context);
  if (context == 0) return;
  const auto index = static_cast<uint32_t>(context - 1);
  if (StateOf(record(index)) == ConnectionState::kRequested && !device_of(index).id) {
    device_of(index).id = std::move(objects_->event.new_id);
    objects_->has_event = false;
  } else {
    id.context = nullptr;
  }
}

// ---------------------------------------------------------------- completions of the dead

// A completion queue is first in, first out. So completions in slots that were not consumed are the
// next that it returns, and one more poll identifies them. The slot that was filled last may be
// torn; then its completion was not consumed.
absl::Status QueueDriver::SettlePollSlots(uint32_t shard) {
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
  verbs::CompletionQueue& queue = *objects_->completion_queues[shard];
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
    LogCompletion(shard, completion);
  }
  // The same check as in PollCompletions.
  BATON_RETURN_IF_ERROR(CheckLog(shard));
  for (uint32_t i = 0; i < next; ++i) arena::StoreRelease(slots[i].wr_id, arena::kInvalidWrId);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- connections

void QueueDriver::RepeatLife(uint32_t index) {
  ConnectionRecord& connection = record(index);
  DeviceObjects::Connection& device = device_of(index);
  switch (StateOf(connection)) {
    case ConnectionState::kConnecting:
      // An accept that had no effect is repeated with its transaction.
      if (connection.listener_port != 0 && device.queue_pair &&
          device.queue_pair->state() == verbs::QueuePairState::kInit) {
        connection.answered = 0;
      }
      break;
    case ConnectionState::kEstablished:
      EndIfFailedBefore(index);
      break;
    case ConnectionState::kDraining:
      if (connection.abandoned != 0) {
        Abandon(index, "");
      } else {
        EndConnection(index);
      }
      break;
    default:
      break;
  }
}

// This driver cannot finish the transaction that accepts the connection: the shard that it came
// from has another owner now.
void QueueDriver::FailArriving(uint32_t index) {
  ConnectionRecord& connection = record(index);
  if (connection.arriving == 0) return;
  StartDraining(index, CompletionStatus::kGeneralError,
                "its owner died while it accepted the connection into another shard, and they have "
                "different owners now");
  arena::StoreRelease(connection.arriving, uint8_t{0});
}

void QueueDriver::SettleQueues(uint32_t index) {
  const ConnectionRecord& connection = record(index);
  const ConnectionState state = StateOf(connection);
  if (state == ConnectionState::kDraining) return SettleEnding(index);
  if (state != ConnectionState::kConnecting && state != ConnectionState::kEstablished) return;
  recovery_.receives_ambiguous += MaybePosted(connection, true);
  recovery_.sends_ambiguous += MaybePosted(connection, false);
  AskFate(index, true);
  if (slots_[index].receives_held) DeliverSpares(index);
  AskFate(index, false);
  PostAllDeferred(index);
}

// Asks a device that can say what is queued only now, because all completions are logged by now.
void QueueDriver::SettleEnding(uint32_t index) {
  for (const bool receive : {true, false}) AskFate(index, receive);
  FinishDraining(index);
}

void QueueDriver::PostAllDeferred(uint32_t index) {
  PostDeferred(index, true);
  PostDeferred(index, false);
}

void QueueDriver::ResumeTransaction(uint32_t shard) {
  const arena::ShardRecord& record = arena_->shard(shard);
  const uint64_t epoch = arena::OwnershipEpoch(record.owner.ownership);
  if (record.apply_begun != record.commit_head || epoch == 0) return;
  // If its writer has made the transaction invalid meanwhile, the next ApplyNext() finds it, too.
  absl::Status error;
  if (ApplyNext(shard, &error) != CommitOutcome::kInvalid) ++recovery_.transactions_resumed;
}

// ---------------------------------------------------------------- fates

const SpareRecord* QueueDriver::LastSpare(uint32_t index) const {
  const SpareRecord* last = nullptr;
  const uint32_t shard = ShardOf(record(index));
  for (uint32_t i = 0; shards_[shard].spares_in_use != 0 && i < arena::kSpares; ++i) {
    const SpareRecord& spare = arena_->spare(shard, i);
    if (spare.owner != index + 1 || SpareState(spare.state) == SpareState::kFilled) continue;
    if (!last || spare.order > last->order) last = &spare;
  }
  return last;
}

bool QueueDriver::Drained(uint32_t index) const {
  const ConnectionRecord& connection = record(index);
  const verbs::QueuePair* const queue_pair = device_of(index).queue_pair.get();
  if (SharesReceives() && queue_pair != nullptr && !queue_pair->holds_no_receive()) return false;
  return connection.send.posted == connection.send.completed &&
         (SharesReceives() || connection.receive.posted == connection.receive.completed) &&
         MaybePosted(connection, false) == 0 && MaybePosted(connection, true) == 0 &&
         Outstanding(connection.send_markers) == 0 &&
         Outstanding(connection.receive_markers) == 0 && LastSpare(index) == nullptr;
}

// Resolves ambiguous requests: asks the device, or posts a marker or spare unless one is
// outstanding. A driver of an earlier release may have posted one to a device that can be asked.
void QueueDriver::AskFate(uint32_t index, bool receive) {
  ConnectionRecord& connection = record(index);
  if (!device_of(index).queue_pair) return;
  const MarkerCursors& markers = MarkersOf(connection, receive);
  if (Outstanding(markers) != 0) {
    if (markers.confirmed != markers.begun) PostMarker(index, receive);
    return;
  }
  const SpareRecord* const spare = receive ? LastSpare(index) : nullptr;
  if (spare && SpareState(spare->state) == SpareState::kConfirmed) return;
  if (!spare && MaybePosted(connection, receive) == 0) return;
  if (!spare && AskDevice(index, receive)) return;
  if (receive && IsLive(connection)) {
    PostSpare(index);
  } else {
    PostMarker(index, receive);
  }
}

// Returns false if the device cannot say which requests are queued, or not now: a request whose
// completion was consumed and is not logged yet is no longer queued.
bool QueueDriver::AskDevice(uint32_t index, bool receive) {
  const absl::StatusOr<std::optional<uint64_t>> last =
      device_of(index).queue_pair->LastQueued(receive);
  if (absl::IsUnimplemented(last.status())) return false;
  if (posts_held_) return true;  // SettleQueues asks again
  const arena::PollSlot& first_taken = arena_->poll_slots(ShardOf(record(index)))[0];
  if (arena::LoadRelaxed(first_taken.wr_id) != arena::kInvalidWrId) return false;
  const absl::StatusOr<uint64_t> end =
      last.ok() ? EndOfQueued(index, receive, *last) : absl::StatusOr<uint64_t>(last.status());
  if (end.ok()) {
    ++recovery_.answers;
    Settle(index, receive, *end);
  } else {
    FailUnknown(index, MessageOf(end.status()));
  }
  return true;
}

// Returns the end of the requests whose last one in the device is `last`. REQUIRES: all completions
// are logged. Requests before `posted` were queued, and those behind `attempted` were not: a device
// that contradicts this is not believed.
absl::StatusOr<uint64_t> QueueDriver::EndOfQueued(uint32_t index, bool receive,
                                                  std::optional<uint64_t> last) const {
  const ConnectionRecord& connection = record(index);
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

// Posts a work request without effect. When it has completed, every request posted before it has,
// too. This works for receives only in the error state; otherwise a spare is posted.
void QueueDriver::PostMarker(uint32_t index, bool receive) {
  ConnectionRecord& connection = record(index);
  MarkerCursors& markers = MarkersOf(connection, receive);
  ShardQueue& queue = shards_[ShardOf(connection)];
  const uint32_t outstanding = Outstanding(markers) + (receive ? CountSpares(index) : 0);
  if (outstanding >= arena::kMarkers || queue.markers >= arena::kShardMarkers) {
    return FailUnknown(index, "too many recoveries died of it");
  }
  arena::StoreRelaxed(markers.begun, static_cast<uint8_t>(markers.begun + 1));
  ++queue.markers;
  ++recovery_.markers;
  if (!receive) slots_[index].sends_held = true;
  BATON_CRASH_POINT("driver-marker-begun");
  const uint64_t wr_id = arena::PackWrId(index, connection.generation,
                                         receive ? Direction::kReceive : Direction::kSend,
                                         arena::kMarkerSequence + markers.begun);
  verbs::SendRequest write;
  write.wr_id = wr_id;
  write.opcode = verbs::Opcode::kWrite;
  const verbs::ReceiveRequest nothing = {wr_id, {}};
  verbs::QueuePair& queue_pair = *device_of(index).queue_pair;
  size_t posted = 0;
  const absl::Status status = receive ? queue_pair.PostReceive({&nothing, 1}, &posted)
                                      : queue_pair.PostSend({&write, 1}, &posted);
  BATON_CRASH_POINT("driver-marker-posted");
  if (!status.ok()) return FailUnknown(index, MessageOf(status));
  arena::StoreRelaxed(markers.confirmed, markers.begun);
  BATON_CRASH_POINT("driver-marker-confirmed");
}

void QueueDriver::LogMarker(uint32_t index, bool receive, const verbs::Completion& completion) {
  const uint64_t sequence = arena::WrIdSequence(completion.wr_id);
  if (sequence >= arena::kSpareSequence) {
    return OnSpare(index, static_cast<uint32_t>(sequence - arena::kSpareSequence), completion);
  }
  ConnectionRecord& connection = record(index);
  MarkerCursors& markers = MarkersOf(connection, receive);
  const auto number = static_cast<uint8_t>(sequence - arena::kMarkerSequence);
  const auto completed = static_cast<uint8_t>(number - markers.completed);
  // A driver that died has seen it already.
  if (completed == 0 || completed > Outstanding(markers)) return;
  if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    StartDraining(index, completion.status, verbs::CompletionStatusName(completion.status));
  }
  const bool last = number == markers.begun;
  if (last) {
    if (receive) FreeSpares(index, false, ~0u);
    SettleCompleted(index, receive);
    arena::StoreRelaxed(markers.confirmed, number);
  }
  BATON_CRASH_POINT("driver-marker-settled");
  arena::StoreRelease(markers.completed, number);
  shards_[ShardOf(connection)].markers -= completed;
  BATON_CRASH_POINT("driver-marker-completed");
  if (last && !receive) slots_[index].sends_held = false;
  if (IsLive(connection)) {
    if (last) PostDeferred(index, receive);
  } else {
    FinishDraining(index);
  }
}

// Everything posted to the queue so far has completed: other requests were never posted.
void QueueDriver::SettleCompleted(uint32_t index, bool receive) {
  const ConnectionRecord& connection = record(index);
  Settle(index, receive, (receive ? connection.receive : connection.send).completed);
}

// Records that the requests before `end` were posted, and no others.
void QueueDriver::Settle(uint32_t index, bool receive, uint64_t end) {
  ConnectionRecord& connection = record(index);
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  ShardCounters& counters = shards_[ShardOf(connection)].counters;
  const uint64_t more = end - cursors.posted;  // negative (it wraps) if abandoned
  const uint64_t found = end > cursors.posted ? more : 0;
  if (!receive) recovery_.sends_found_posted += found;
  (receive ? recovery_.receives_never_posted : recovery_.sends_never_posted) +=
      MaybePosted(connection, receive) - found;
  (receive ? counters.receives_posted : counters.sends_posted) += more;
  if (!IsLive(connection)) {
    (receive ? counters.receives_committed : counters.sends_committed) += more;
  }
  arena::StoreRelease(cursors.posted, end);
  BATON_CRASH_POINT("driver-settled");
  observer_->OnSettled(index, receive, end);
  arena::StoreRelaxed(receive ? connection.receive_attempted : connection.send_attempted,
                      static_cast<uint32_t>(end));
}

// Gives up this connection, and no other (P6).
void QueueDriver::FailUnknown(uint32_t index, std::string_view why) {
  if (IsLive(record(index))) {
    ++recovery_.connections_failed;
    StartDraining(index, CompletionStatus::kGeneralError,
                  absl::StrCat("what became of its requests cannot be established: ", View(why)));
  } else if (record(index).abandoned == 0) {
    Abandon(index, why);
  }
}

// Destroys a queue pair that does not complete even in the error state, so that the device touches
// no buffer of it any more. Its earlier completions are in the completion queue. A pooled queue
// pair stays in the error state instead.
void QueueDriver::Abandon(uint32_t index, std::string_view why) {
  arena::StoreRelaxed(record(index).abandoned, uint8_t{1});
  BATON_CRASH_POINT("driver-abandoned");
  DropObjects(index);
  slots_[index].end_reason += absl::StrCat("; abandoned: ", View(why));
  slots_[index].abandoned_ns = MonotonicNanoseconds();
  abandoned_.push_back(index);
  ++ends_noted_;
}

// Ends the shard's abandoned connections, once the device has had its time. Called when the
// completion queue gives nothing more. If an abandoned connection has ended by itself, its slot may
// have another connection by now.
void QueueDriver::FinishAbandoned(uint32_t shard) {
  const std::vector<uint32_t> all = std::exchange(abandoned_, {});
  for (const uint32_t index : all) {
    ConnectionRecord& connection = record(index);
    if (StateOf(connection) != ConnectionState::kDraining || connection.abandoned == 0) continue;
    const bool quiet = sole_ || MonotonicNanoseconds() - slots_[index].abandoned_ns >= kAtWorkNs;
    if (connection.shard != shard || !quiet) {
      abandoned_.push_back(index);
      continue;
    }
    FreeSpares(index, true, ~0u);
    for (const bool receive : {true, false}) {
      MarkerCursors& markers = MarkersOf(connection, receive);
      if (!receive || !SharesReceives()) SettleCompleted(index, receive);
      shards_[shard].markers -= Outstanding(markers);
      arena::StoreRelaxed(markers.completed, markers.begun);
    }
    FinishDraining(index);
  }
}

// ---------------------------------------------------------------- spare receives

uint32_t QueueDriver::CountSpares(uint32_t index) const {
  uint32_t count = 0;
  const uint32_t shard = ShardOf(record(index));
  for (uint32_t i = 0; shards_[shard].spares_in_use != 0 && i < arena::kSpares; ++i) {
    if (arena_->spare(shard, i).owner == index + 1) ++count;
  }
  return count;
}

// Posts a spare behind receives that may have been posted: the peer finds a receive in any case. No
// other receive is posted before the spare completes, so it is known which one it stands for.
void QueueDriver::PostSpare(uint32_t index) {
  ConnectionRecord& connection = record(index);
  const uint32_t shard = ShardOf(connection);
  const uint64_t first = connection.receive.posted;
  const uint64_t end =
      std::max(connection.receive.committed, first + MaybePosted(connection, true));
  if (end - first > arena_->shape().receive_queue_depth) {
    return FailUnknown(index, "more receives than the queue holds may have been posted");
  }
  for (uint64_t i = first; i < end; ++i) {
    const arena::WorkRequest request = arena::CopyOnce(arena_->receive_request(index, i));
    if (LengthOf(request) > arena::kSpareBytes) {
      return FailUnknown(index,
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
    return FailUnknown(index, "no spare receive is free");
  }
  SpareRecord& spare = arena_->spare(shard, number);
  spare.generation = connection.generation;
  spare.state = static_cast<uint32_t>(SpareState::kBegun);
  spare.order = order + 1;
  arena::StoreRelease(spare.owner, index + 1);
  ++shards_[shard].spares_in_use;
  ++recovery_.spares;
  slots_[index].receives_held = true;
  BATON_CRASH_POINT("driver-spare-begun");
  const verbs::ScatterGather sge = {reinterpret_cast<uint64_t>(arena_->spare_buffer(shard, number)),
                                    arena::kSpareBytes, objects_->spares->lkey()};
  const verbs::ReceiveRequest request = {
      arena::PackWrId(index, connection.generation, Direction::kReceive,
                      arena::kSpareSequence + number),
      {&sge, 1}};
  size_t posted = 0;
  const absl::Status status = device_of(index).queue_pair->PostReceive({&request, 1}, &posted);
  BATON_CRASH_POINT("driver-spare-posted");
  if (!status.ok()) return FailUnknown(index, MessageOf(status));
  arena::StoreRelaxed(spare.state, static_cast<uint32_t>(SpareState::kConfirmed));
  BATON_CRASH_POINT("driver-spare-confirmed");
}

void QueueDriver::OnSpare(uint32_t index, uint32_t number, const verbs::Completion& completion) {
  if (number >= arena::kSpares) return;
  ConnectionRecord& connection = record(index);
  const uint32_t shard = ShardOf(connection);
  SpareRecord& spare = arena_->spare(shard, number);
  // A driver that died has dealt with it already.
  if (spare.owner != index + 1 || spare.generation != connection.generation) return;
  if (completion.status == CompletionStatus::kLocalLengthError && IsLive(connection)) {
    // The application's own receive, which was committed since, may have had room for it.
    ++recovery_.connections_failed;
    StartDraining(
        index, CompletionStatus::kGeneralError,
        absl::StrCat("a message was longer than the spare receive of ", arena::kSpareBytes,
                     " bytes that stood in the place of its own since a driver died"));
  } else if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    StartDraining(index, completion.status, verbs::CompletionStatusName(completion.status));
  }
  if (!IsLive(connection)) {  // there was no message, or it is not wanted any more
    FreeSpares(index, false, spare.order);
    SettleCompleted(index, true);
    return FinishDraining(index);
  }
  if (SpareState(spare.state) != SpareState::kFilled) {
    uint64_t stands_for = connection.receive.completed;
    for (uint32_t i = 0; i < arena::kSpares; ++i) {
      const SpareRecord& other = arena_->spare(shard, i);
      if (other.owner == index + 1 && SpareState(other.state) == SpareState::kFilled &&
          other.stands_for >= stands_for) {
        stands_for = other.stands_for + 1;
      }
    }
    spare.stands_for = stands_for;
    spare.opcode = static_cast<uint8_t>(completion.opcode);
    spare.flags =
        static_cast<uint8_t>((completion.has_immediate ? arena::kCompletionHasImmediate : 0) |
                             (completion.has_invalidate ? arena::kCompletionHasInvalidate : 0));
    spare.byte_len = completion.byte_len;
    spare.immediate = completion.immediate;
    arena::StoreRelease(spare.state, static_cast<uint32_t>(SpareState::kFilled));
    BATON_CRASH_POINT("driver-spare-filled");
  }
  if (spare.order != 0) FreeSpares(index, false, spare.order - 1);
  SettleCompleted(index, true);
  DeliverSpares(index);
}

// Messages that came into spares become the completions of the receives that the spares stand for,
// as soon as those receives are committed.
void QueueDriver::DeliverSpares(uint32_t index) {
  const ConnectionRecord& connection = record(index);
  const uint32_t shard = ShardOf(connection);
  for (uint32_t i = 0; i < arena::kSpares && IsLive(connection);) {
    SpareRecord& spare = arena_->spare(shard, i);
    const bool filled = spare.owner == index + 1 && SpareState(spare.state) == SpareState::kFilled;
    if (filled && spare.stands_for < connection.receive.completed) {
      FreeSpare(shard, spare);  // a driver died between its delivery and this
    } else if (filled && spare.stands_for == connection.receive.completed &&
               connection.receive.completed < connection.receive.committed) {
      DeliverSpare(index, i);
      i = 0;
      continue;
    }
    ++i;
  }
  if (CountSpares(index) != 0) return;
  slots_[index].receives_held = false;
  PostDeferred(index, true);
}

// The receive is known not to have been posted, so only this driver uses its buffer.
void QueueDriver::DeliverSpare(uint32_t index, uint32_t number) {
  const ConnectionRecord& connection = record(index);
  const uint32_t shard = ShardOf(connection);
  SpareRecord& spare = arena_->spare(shard, number);
  const arena::WorkRequest request =
      arena::CopyOnce(arena_->receive_request(index, connection.receive.completed));
  const absl::Status checked = CheckRequest(request, true, LimitsOf(*arena_));
  if (!checked.ok()) {
    return StartDraining(index, CompletionStatus::kGeneralError,
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
  LogRequest(shard, index, true, completion);
  BATON_CRASH_POINT("driver-spare-delivered");
  if (completion.status != CompletionStatus::kSuccess) {
    StartDraining(index, completion.status, verbs::CompletionStatusName(completion.status));
  }
  FreeSpare(shard, spare);
}

void QueueDriver::FreeSpare(uint32_t shard, SpareRecord& spare) {
  arena::StoreRelease(spare.owner, 0u);
  --shards_[shard].spares_in_use;
  BATON_CRASH_POINT("driver-spare-freed");
}

// Frees the connection's spares up to `last` in their order, which have completed or never were
// posted. `filled_too`: also spares whose message was not delivered.
void QueueDriver::FreeSpares(uint32_t index, bool filled_too, uint32_t last) {
  const uint32_t shard = ShardOf(record(index));
  for (uint32_t i = 0; shards_[shard].spares_in_use != 0 && i < arena::kSpares; ++i) {
    SpareRecord& spare = arena_->spare(shard, i);
    if (spare.owner != index + 1 || spare.order > last) continue;
    if (SpareState(spare.state) != SpareState::kFilled || filled_too) FreeSpare(shard, spare);
  }
}

}  // namespace baton::driver
