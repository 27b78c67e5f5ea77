#include "lib/driver/completion_mover.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/poison.h"
#include "lib/verbs/mlx5/polling.h"

namespace baton::driver {
namespace {

using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionRecord;
using arena::ConnectionState;
using arena::Direction;
using arena::PoisonLevel;
using arena::QueueCursors;
using arena::SpareRecord;
using arena::SpareState;
using verbs::CompletionStatus;

constexpr int kPollBatch = 64;
constexpr int kBatchesPerPoll = 4;
constexpr uint64_t kSequenceMask = 0xff'ffff'ffff;
static_assert(2 * kPollBatch == arena::kPollSlots);
static_assert(sizeof(verbs::Completion) == sizeof(arena::PollSlot));

// The request was ambiguous. Its completion shows that it was posted.
void NoteFoundPosted(DriverState& state, ShardCounters& counters, ConnectionRecord& connection,
                     bool receive) {
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  arena::StoreRelease(cursors.posted, cursors.completed);
  ++(receive ? counters.receives_posted : counters.sends_posted);
  if (!IsLive(connection)) ++(receive ? counters.receives_committed : counters.sends_committed);
  if (!receive) ++state.recovery.sends_found_posted;
}

}  // namespace

CompletionMover::CompletionMover(DriverState& state, AmbiguousRequests& ambiguous,
                                 ConnectionTeardown& teardown, RequestPoster& poster,
                                 SharedReceives& shared)
    : state_(state),
      arena_(state.arena),
      ambiguous_(ambiguous),
      teardown_(teardown),
      poster_(poster),
      shared_(shared),
      connection_slots_(state.connection_slots),
      records_(state.records),
      send_log_mask_(2 * uint64_t{arena_->shape().send_queue_depth} - 1),
      receive_log_mask_(2 * uint64_t{arena_->shape().receive_queue_depth} - 1),
      completions_(kPollBatch) {
  for (uint32_t i = 0; i < connection_slots_; ++i) {
    request_logs_.push_back({&arena_->send_request(i, 0), &arena_->receive_request(i, 0)});
  }
}

absl::StatusOr<bool> CompletionMover::PollCompletions(uint32_t shard) {
  DriverState& state = state_;
  CompletionLog& log = state.shards[shard].log;
  bool took = false, empty = false;
  for (int batch = 0; batch < kBatchesPerPoll && !empty; ++batch) {
    if (batch != 0) log.Publish();
    const uint64_t ends_noted = state.ends_noted;
    BATON_ASSIGN_OR_RETURN(const int taken, TakeBatch(shard));
    took |= taken > 0;
    empty = taken < kPollBatch && state.ends_noted == ends_noted;
  }
  if (empty && !state.ending.empty()) teardown_.FinishEnding(shard);
  if (empty && !state.abandoned.empty()) teardown_.FinishAbandoned(shard);
  BATON_RETURN_IF_ERROR(state.CheckLog(shard));
  const bool published = log.Publish();
  if (took) log.SetAt(0);
  return published || took;
}

absl::Status CompletionMover::DrainCompletions(uint32_t shard) {
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const bool took, PollCompletions(shard));
    if (!took) return absl::OkStatus();
  }
}

// Logs the completions of TakeEach(): plain ones of established connections itself, all others with
// LogCompletion(). A successor that gets a completion again finds it in the log.
class CompletionMover::BatchLogger {
 public:
  static constexpr bool kTogether = true;

  // The completions of one connection's sends or receives, from its next one on.
  template <bool kReceive>
  class Run {
   public:
    [[gnu::always_inline]] Run(BatchLogger* logger, uint64_t wr_id)
        : counters_(logger->queue_->counters), all_(logger->queue_->log), log_(all_) {
      const CompletionMover& mover = *logger->mover_;
      const uint32_t index = arena::WrIdConnection(wr_id);
      if (index >= mover.connection_slots_) [[unlikely]]
        return;
      all_.SetAt(arena::AtConnection(index));
      connection_ = &mover.records_[index];
      const QueueCursors& cursors = kReceive ? connection_->receive : connection_->send;
      const uint64_t sequence = cursors.completed;
      constexpr Direction kDirection = kReceive ? Direction::kReceive : Direction::kSend;
      if (wr_id != arena::PackWrId(index, connection_->generation, kDirection, sequence) ||
          StateOf(*connection_) != ConnectionState::kEstablished || connection_->poison != 0)
          [[unlikely]] {
        return;
      }
      next_wr_id_ = wr_id;
      sequence_ = sequence;
      posted_ = cursors.posted;
      whose_ = arena::TwoFields(index, connection_->generation);
      const RequestLogs& logs = mover.request_logs_[index];
      requests_ = kReceive ? logs.receives : logs.sends;
      mask_ = kReceive ? mover.receive_log_mask_ : mover.send_log_mask_;
    }
    [[gnu::always_inline]] ~Run() {
      all_.End(log_);
      (kReceive ? counters_.receives_completed : counters_.sends_completed) += count_;
      if constexpr (kReceive) counters_.bytes_received += bytes_;
    }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    [[gnu::always_inline]] bool Keep(const verbs::mlx5::PlainCompletion& plain) {
      BATON_CRASH_POINT("driver-polled");
      CompletionEntry* const entry = log_.Next();
      if (plain.wr_id != next_wr_id_ || sequence_ >= posted_ || entry == nullptr) [[unlikely]]
        return false;
      constexpr auto kKind = kReceive ? CompletionKind::kReceive : CompletionKind::kSend;
      static_assert(offsetof(CompletionEntry, opcode) == offsetof(CompletionEntry, kind) + 2 &&
                    offsetof(CompletionEntry, flags) == offsetof(CompletionEntry, kind) + 3 &&
                    arena::kCompletionHasImmediate == 1 && arena::kCompletionHasInvalidate == 2);
      const uint32_t head = (plain.what & verbs::mlx5::PlainCompletion::kOpcodeAndFlags) |
                            static_cast<uint32_t>(kKind);
      arena::StorePair<offsetof(CompletionEntry, kind)>(
          *entry, arena::TwoFields(head, plain.byte_len), arena::TwoFields(plain.immediate, 0));
      static_assert(offsetof(CompletionEntry, sequence) ==
                    offsetof(CompletionEntry, connection) + 8);
      arena::StorePair<offsetof(CompletionEntry, connection)>(*entry, whose_, sequence_);
      entry->tag = requests_[sequence_ & mask_].tag;
      log_.Append(plain.wr_id);
      ++sequence_;
      arena::StoreRelease((kReceive ? connection_->receive : connection_->send).completed,
                          sequence_);
      BATON_CRASH_POINT("driver-completed");
      ++next_wr_id_;
      ++count_;
      if constexpr (kReceive) {
        connection_->bytes_received += plain.byte_len;
        bytes_ += plain.byte_len;
      }
      return true;
    }

   private:
    ShardCounters& counters_;
    CompletionLog& all_;
    CompletionLog::Run log_;
    ConnectionRecord* connection_ = nullptr;
    const arena::WorkRequest* requests_ = nullptr;
    uint64_t mask_ = 0;
    uint64_t next_wr_id_ = 0;
    uint64_t sequence_ = 0, posted_ = 0;  // equal: none is expected
    uint64_t whose_ = 0;                  // connection and generation, as an entry has them
    uint64_t count_ = 0, bytes_ = 0;
  };

  BatchLogger(CompletionMover* mover, uint32_t shard)
      : mover_(mover), shard_(shard), queue_(&mover->state_.shards[shard]) {}
  BatchLogger(const BatchLogger&) = delete;
  BatchLogger& operator=(const BatchLogger&) = delete;

  [[gnu::always_inline]] Run<false> Sends(uint64_t wr_id) { return {this, wr_id}; }
  [[gnu::always_inline]] Run<true> Receives(uint64_t wr_id) { return {this, wr_id}; }
  bool Keep(const verbs::Completion& completion) {
    BATON_CRASH_POINT("driver-polled");
    mover_->LogCompletion(shard_, completion);
    return queue_->log.broken() == nullptr;
  }

 private:
  CompletionMover* const mover_;
  const uint32_t shard_;
  ShardQueue* const queue_;
};

// Logs up to kPollBatch completions, and returns how many the queue had. Completions that are not
// logged stay in the queue or in the slots, for a successor.
[[gnu::always_inline]] inline absl::StatusOr<int> CompletionMover::TakeBatch(uint32_t shard) {
  verbs::CompletionQueue& queue = *state_.objects->completion_queues[shard];
  verbs::mlx5::CompletionQueue* const direct = queue.DirectQueue();
  if (direct == nullptr) return TakeBatchBySlots(shard);
  BatchLogger logger(this, shard);
  const int taken = direct->TakeEach(kPollBatch, &logger);
  if (taken == verbs::mlx5::CompletionQueue::kNonsense) [[unlikely]]
    return direct->WhyUnknown();
  BATON_RETURN_IF_ERROR(state_.CheckLog(shard));
  return taken;
}

// The slots outlive this process, so a successor finds the completions that were consumed and not
// logged.
absl::StatusOr<int> CompletionMover::TakeBatchBySlots(uint32_t shard) {
  verbs::CompletionQueue& queue = *state_.objects->completion_queues[shard];
  auto* const slots = reinterpret_cast<verbs::Completion*>(arena_->poll_slots(shard));
  BATON_ASSIGN_OR_RETURN(const int taken, queue.Take({slots, kPollBatch}));
  const auto count = static_cast<size_t>(taken);
  queue.Read({slots, count}, completions_.data());
  for (size_t i = 0; i < count; ++i) {
    BATON_CRASH_POINT("driver-polled");
    LogCompletion(shard, completions_[i]);
  }
  BATON_RETURN_IF_ERROR(state_.CheckLog(shard));
  for (size_t i = 0; i < count; ++i) arena::StoreRelease(slots[i].wr_id, arena::kInvalidWrId);
  return taken;
}

// Most completions are of the oldest request that has none. LogUnexpected() handles all others.
void CompletionMover::LogCompletion(uint32_t shard, const verbs::Completion& completion) {
  const uint32_t index = arena::WrIdConnection(completion.wr_id);
  // Drops a completion that names no connection. If another process of the service has overwritten
  // its wr_id, the connection that it belonged to misses it.
  if (index >= connection_slots_) return;
  ConnectionRecord& connection = records_[index];
  const Direction direction = arena::WrIdDirection(completion.wr_id);
  const bool receive = direction == Direction::kReceive;
  const uint64_t next = receive ? connection.receive.completed : connection.send.completed;
  if (completion.wr_id != arena::PackWrId(index, connection.generation, direction, next) ||
      (StateOf(connection) != ConnectionState::kEstablished &&
       (IsOver(connection) || IsCondemned(connection)))) {
    return LogUnexpected(shard, index, completion);
  }
  LogRequest(state_, shard, index, receive, completion);
  if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    teardown_.EndAfterError(index, completion.status);
  } else if (StateOf(connection) == ConnectionState::kDraining) {
    teardown_.FinishDraining(index);
  }
}

void CompletionMover::LogUnexpected(uint32_t shard, uint32_t index,
                                    const verbs::Completion& completion) {
  if (arena::IsSharedReceive(completion.wr_id)) return shared_.Log(shard, completion);
  state_.SetAt(shard, arena::AtConnection(index));
  const ConnectionRecord& connection = state_.record(index);
  // The connection was drained and given up, so its completion is dropped.
  if (arena::WrIdGeneration(completion.wr_id) != arena::ShortGeneration(connection.generation))
    return;
  if (IsOver(connection) || IsCondemned(connection)) return;
  const bool receive = arena::WrIdDirection(completion.wr_id) == Direction::kReceive;
  const uint64_t sequence = arena::WrIdSequence(completion.wr_id);
  if (sequence >= arena::kMarkerSequence) return LogMarker(index, receive, completion);
  const QueueCursors& cursors = receive ? connection.receive : connection.send;
  const uint64_t ahead = (sequence - cursors.completed) & kSequenceMask;
  if (ahead > kSequenceMask / 2) return;  // a driver that died has logged it already
  teardown_.FailUnknown(index, "a completion is missing");
}

// Fills the entry in its place, without a copy.
void LogRequest(DriverState& state, uint32_t shard, uint32_t index, bool receive,
                const verbs::Completion& completion) {
  ShardQueue& queue = state.shards[shard];
  ConnectionRecord& connection = state.record(index);
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  const uint64_t sequence = cursors.completed;
  CompletionLog& log = queue.log;
  CompletionEntry* const slot = log.Next();
  if (slot == nullptr) return;
  log.SetAt(arena::AtConnection(index));
  BATON_CRASH_POINT("driver-logs-completion");
  CompletionEntry& entry = *slot;
  FillEntry(receive ? CompletionKind::kReceive : CompletionKind::kSend, completion, &entry);
  static_assert(offsetof(CompletionEntry, sequence) == offsetof(CompletionEntry, connection) + 8);
  arena::StorePair<offsetof(CompletionEntry, connection)>(
      entry, arena::TwoFields(index, connection.generation), sequence);
  entry.tag = receive ? state.arena->receive_request(index, sequence).tag
                      : state.arena->send_request(index, sequence).tag;
  if (connection.poison != 0) Spoil(PoisonLevel(connection.poison), &entry);
  log.Append(completion.wr_id);
  arena::StoreRelease(cursors.completed, sequence + 1);
  BATON_CRASH_POINT("driver-completed");
  ++(receive ? queue.counters.receives_completed : queue.counters.sends_completed);
  if (receive) {
    connection.bytes_received += completion.byte_len;
    queue.counters.bytes_received += completion.byte_len;
  }
  if (cursors.posted <= sequence) NoteFoundPosted(state, queue.counters, connection, receive);
}

void FillEntry(CompletionKind kind, const verbs::Completion& completion, CompletionEntry* entry) {
  const uint32_t flags = (completion.has_immediate ? arena::kCompletionHasImmediate : 0u) |
                         (completion.has_invalidate ? arena::kCompletionHasInvalidate : 0u);
  const uint32_t head =
      arena::FourBytes(static_cast<uint8_t>(kind), static_cast<uint8_t>(completion.status),
                       static_cast<uint8_t>(completion.opcode), static_cast<uint8_t>(flags));
  arena::StorePair<offsetof(CompletionEntry, kind)>(
      *entry, arena::TwoFields(head, completion.byte_len),
      arena::TwoFields(completion.immediate, completion.vendor_error));
}

void CompletionMover::LogMarker(uint32_t index, bool receive, const verbs::Completion& completion) {
  const uint64_t sequence = arena::WrIdSequence(completion.wr_id);
  if (sequence >= arena::kSpareSequence) {
    return OnSpare(index, static_cast<uint32_t>(sequence - arena::kSpareSequence), completion);
  }
  ConnectionRecord& connection = state_.record(index);
  arena::MarkerCursors& markers = MarkersOf(connection, receive);
  const auto number = static_cast<uint8_t>(sequence - arena::kMarkerSequence);
  const auto completed = static_cast<uint8_t>(number - markers.completed);
  // A driver that died has seen it already.
  if (completed == 0 || completed > Outstanding(markers)) return;
  if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    teardown_.StartDraining(index, completion.status,
                            verbs::CompletionStatusName(completion.status));
  }
  const bool last = number == markers.begun;
  if (last) {
    if (receive) ambiguous_.FreeSpares(index, false, ~0u);
    ambiguous_.SettleCompleted(index, receive);
    arena::StoreRelaxed(markers.confirmed, number);
  }
  BATON_CRASH_POINT("driver-marker-settled");
  arena::StoreRelease(markers.completed, number);
  state_.shards[state_.ShardOf(connection)].markers -= completed;
  BATON_CRASH_POINT("driver-marker-completed");
  if (last && !receive) state_.slots[index].sends_held = false;
  if (IsLive(connection)) {
    if (last) poster_.PostDeferred(index, receive);
  } else {
    teardown_.FinishDraining(index);
  }
}

void CompletionMover::OnSpare(uint32_t index, uint32_t number,
                              const verbs::Completion& completion) {
  if (number >= arena::kSpares) return;
  ConnectionRecord& connection = state_.record(index);
  const uint32_t shard = state_.ShardOf(connection);
  SpareRecord& spare = arena_->spare(shard, number);
  // A driver that died has dealt with it already.
  if (spare.owner != index + 1 || spare.generation != connection.generation) return;
  if (completion.status == CompletionStatus::kLocalLengthError && IsLive(connection)) {
    // The application's own receive, which was committed since, may have had room for it.
    ++state_.recovery.connections_failed;
    teardown_.StartDraining(
        index, CompletionStatus::kGeneralError,
        absl::StrCat("a message was longer than the spare receive of ", arena::kSpareBytes,
                     " bytes that stood in the place of its own since a driver died"));
  } else if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    teardown_.StartDraining(index, completion.status,
                            verbs::CompletionStatusName(completion.status));
  }
  if (!IsLive(connection)) {  // there was no message, or it is not wanted any more
    ambiguous_.FreeSpares(index, false, spare.order);
    ambiguous_.SettleCompleted(index, true);
    return teardown_.FinishDraining(index);
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
  if (spare.order != 0) ambiguous_.FreeSpares(index, false, spare.order - 1);
  ambiguous_.SettleCompleted(index, true);
  poster_.DeliverSpares(index);
}

}  // namespace baton::driver
