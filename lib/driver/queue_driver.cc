#include "lib/driver/queue_driver.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/text_field.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/poison.h"
#include "lib/verbs/mlx5/polling.h"

namespace baton::driver {
namespace {

using arena::CommitEntry;
using arena::CommitKind;
using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionRecord;
using arena::ConnectionState;
using arena::Direction;
using arena::PoisonLevel;
using arena::QueueCursors;
using arena::SetText;
using verbs::CompletionStatus;

constexpr size_t kPostChunk = 64;
constexpr int kPollBatch = 64;
constexpr int kBatchesPerPoll = 4;
constexpr uint64_t kSequenceMask = 0xff'ffff'ffff;
constexpr std::string_view kNoQueuePair =
    "its record says that it has a queue pair, which it has not: another process of the service "
    "has written over it";
static_assert(2 * kPollBatch == arena::kPollSlots);
static_assert(sizeof(verbs::Completion) == sizeof(arena::PollSlot));

}  // namespace

QueueDriver::QueueDriver(arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
                         std::shared_ptr<DeviceObjects> objects)
    : arena_(arena),
      device_(device),
      observer_(observer),
      objects_(std::move(objects)),
      reader_(std::make_unique<TransactionReader>(*arena, objects_->buffers->lkey())),
      last_shard_(arena->shape().shards - 1),
      slots_(arena->shape().connections),
      connection_slots_(arena->shape().connections),
      records_(&arena->connection(0)),
      send_log_mask_(2 * uint64_t{arena->shape().send_queue_depth} - 1),
      receive_log_mask_(2 * uint64_t{arena->shape().receive_queue_depth} - 1),
      completions_(kPollBatch),
      one_request_(*arena, objects_->buffers->lkey(), 1) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    shards_.emplace_back(CompletionLog(*arena, i));
  }
  for (uint32_t i = 0; i < connection_slots_; ++i) {
    request_logs_.push_back({&arena->send_request(i, 0), &arena->receive_request(i, 0)});
  }
  by_queue_pair_.reserve(slots_.size());
  ending_.reserve(slots_.size());
}

QueueDriver::~QueueDriver() = default;

absl::StatusOr<std::unique_ptr<QueueDriver>> QueueDriver::Create(arena::Arena* arena,
                                                                 verbs::Device* device,
                                                                 DriverObserver* observer) {
  BATON_ASSIGN_OR_RETURN(auto objects, CreateDeviceObjects(arena, device));
  const arena::Shape& shape = arena->shape();
  std::unique_ptr<QueueDriver> driver(new QueueDriver(arena, device, observer, std::move(objects)));
  for (uint32_t i = 0; i < shape.connections; ++i) driver->free_slots_.push_back(i);
  for (ShardQueue& shard : driver->shards_) shard.operated = true;
  return driver;
}

// ---------------------------------------------------------------- commits

uint64_t QueueDriver::PendingEntries(uint32_t shard) const {
  const arena::ShardRecord& record = arena_->shard(shard);
  const uint64_t epoch = arena::OwnershipEpoch(record.owner.ownership);
  const uint64_t tail = arena::LoadAcquire(arena_->bank(shard, epoch).tail);
  if (!arena::CursorIsOf(tail, epoch)) return 0;  // a late store of another epoch
  if (!arena::CursorIsOf(record.commit_head, epoch)) return 0;
  const uint64_t pending = arena::CursorIndex(tail) - arena::CursorIndex(record.commit_head);
  return pending <= arena::kCommitLogEntries ? pending : 1;
}

CommitOutcome QueueDriver::ApplyNext(uint32_t shard, absl::Status* error) {
  arena::ShardRecord& record = arena_->shard(shard);
  const uint64_t epoch = arena::OwnershipEpoch(record.owner.ownership);
  // A driver that died after applying the release may not have returned kReleased.
  if (record.released_epoch == epoch && epoch != 0) return CommitOutcome::kReleased;
  // A driver made this epoch's cut and died before it began the next epoch.
  if (!arena::CursorIsOf(record.commit_head, epoch)) return CommitOutcome::kIdle;
  const uint64_t head = arena::CursorIndex(record.commit_head);
  const uint64_t tail_word = arena::LoadAcquire(arena_->bank(shard, epoch).tail);
  if (!arena::CursorIsOf(tail_word, epoch)) return CommitOutcome::kIdle;
  const uint64_t tail = arena::CursorIndex(tail_word);
  if (tail == head) return CommitOutcome::kIdle;
  if (tail - head > arena::kCommitLogEntries) {
    *error = absl::InvalidArgumentError(absl::StrCat(
        "tail: ", tail, " with ", head, " applied and ", arena::kCommitLogEntries, " entries"));
    return CommitOutcome::kInvalid;
  }
  const bool resumed = record.apply_begun == record.commit_head;
  if (tail - head == 1 && posts_directly_ && !resumed &&
      ApplyPlain(shard, record, arena_->commit_entry(shard, epoch, head))) [[likely]] {
    EndTransaction(shard, record, arena::PackCursor(epoch, tail));
    return CommitOutcome::kApplied;
  }
  *error = reader_->Read(shard, epoch, head, tail, resumed,
                         [this](uint32_t connection) { return DirectQueuesOf(connection); });
  if (!error->ok()) return CommitOutcome::kInvalid;
  const Transaction& transaction = reader_->transaction();
  arena::StoreRelaxed(record.apply_begun, record.commit_head);
  arena::OrderForCrash();
  BATON_CRASH_POINT("driver-apply-begun");
  Apply(shard, transaction);
  BATON_CRASH_POINT("driver-applied");
  const bool released = CommitKind(transaction.parts.back().entry.kind) == CommitKind::kRelease;
  if (released) arena::StoreRelaxed(record.released_epoch, epoch);
  shards_[shard].counters.bytes_sent += transaction.send_bytes;
  requests_applied_ = transaction.requests;
  EndTransaction(shard, record, arena::PackCursor(epoch, head + transaction.entries));
  return released ? CommitOutcome::kReleased : CommitOutcome::kApplied;
}

[[gnu::always_inline]] inline void QueueDriver::EndTransaction(uint32_t shard,
                                                               arena::ShardRecord& record,
                                                               uint64_t commit_head) {
  ShardCounters& counters = shards_[shard].counters;
  arena::StoreRelaxed(record.bytes_sent, counters.bytes_sent);
  ++counters.transactions;
  arena::StoreRelaxed(record.transactions, counters.transactions);
  arena::StoreRelease(record.commit_head, commit_head);
  BATON_CRASH_POINT("driver-folded");
}

// Most transactions have one entry, which posts requests of one connection and may acknowledge.
// Applies such a transaction. Returns false, and has applied nothing, if it is another or invalid:
// TransactionReader::Read() then tells which.
[[gnu::always_inline]] inline bool QueueDriver::ApplyPlain(uint32_t shard,
                                                           arena::ShardRecord& record,
                                                           const CommitEntry& shared) {
  TransactionPart part;
  arena::CopyOnce(shared, &part.entry);
  const CommitEntry& entry = part.entry;
  if (CommitKind(entry.kind) != CommitKind::kConnection ||
      (entry.flags & ~arena::kCommitAcknowledges) != arena::kCommitLast ||
      entry.connection >= connection_slots_) {
    return false;
  }
  part.direct = DirectQueuesOf(entry.connection);
  uint64_t requests = 0, bytes = 0;
  if (part.direct == nullptr || !reader_->ReadPlain(shard, &part, &requests, &bytes)) return false;
  arena::StoreRelaxed(record.apply_begun, record.commit_head);
  arena::OrderForCrash();
  BATON_CRASH_POINT("driver-apply-begun");
  ApplyConnection(part);
  BATON_CRASH_POINT("driver-part-applied");
  if (arena::Acknowledges(entry)) ApplyAcknowledge(shard, entry);
  BATON_CRASH_POINT("driver-applied");
  shards_[shard].counters.bytes_sent += bytes;
  requests_applied_ = requests;
  return true;
}

// Order within a transaction: queue pairs of accepted connections are created before their receives
// are posted, receives are posted before sends, and connections end before an acknowledgement can
// free their slots.
[[gnu::always_inline]] inline void QueueDriver::Apply(uint32_t shard,
                                                      const Transaction& transaction) {
  constexpr uint32_t kFirst = KindBit(CommitKind::kAccept) | KindBit(CommitKind::kSharedReceives);
  constexpr uint32_t kDecisions = KindBit(CommitKind::kAccept) | KindBit(CommitKind::kReject) |
                                  KindBit(CommitKind::kDisconnect);
  if (transaction.Has(kFirst)) PrepareDecisions(shard, transaction);
  for (const TransactionPart& part : transaction.parts) {
    if (CommitKind(part.entry.kind) == CommitKind::kConnection) ApplyConnection(part);
    if (CommitKind(part.entry.kind) == CommitKind::kShardState) ApplyShardState(shard, part.entry);
    BATON_CRASH_POINT("driver-part-applied");
  }
  if (transaction.Has(kDecisions)) Decide(transaction);
  for (const TransactionPart& part : transaction.parts) {
    if (arena::Acknowledges(part.entry)) ApplyAcknowledge(shard, part.entry);
  }
}

void QueueDriver::PrepareDecisions(uint32_t shard, const Transaction& transaction) {
  for (const TransactionPart& part : transaction.parts) {
    if (CommitKind(part.entry.kind) == CommitKind::kAccept) PrepareAccept(shard, part.entry);
    if (CommitKind(part.entry.kind) == CommitKind::kSharedReceives) PostSharedReceives(shard, part);
  }
}

void QueueDriver::Decide(const Transaction& transaction) {
  for (const TransactionPart& part : transaction.parts) {
    switch (CommitKind(part.entry.kind)) {
      case CommitKind::kAccept:
        FinishAccept(part.entry);
        break;
      case CommitKind::kReject:
        Reject(part.entry);
        break;
      case CommitKind::kDisconnect:
        StartDraining(part.entry.connection, CompletionStatus::kSuccess,
                      "disconnected by the worker");
        break;
      default:
        break;
    }
    BATON_CRASH_POINT("driver-part-decided");
  }
}

void QueueDriver::ApplyShardState(uint32_t shard, const CommitEntry& entry) {
  arena::ShardRecord& record = arena_->shard(shard);
  record.state_length = entry.state_length;
  record.state_version = entry.state_version;
  BATON_CRASH_POINT("driver-shard-state-half");
  record.state_slot = entry.state_slot;
}

[[gnu::always_inline]] inline void QueueDriver::ApplyConnection(const TransactionPart& part) {
  const CommitEntry& entry = part.entry;
  ConnectionRecord& connection = record(entry.connection);
  if (entry.state_slot != arena::kKeepState) {
    connection.state_length = entry.state_length;
    connection.state_version = entry.state_version;
    BATON_CRASH_POINT("driver-state-half");
    connection.state_slot = entry.state_slot;
  }
  posts_directly_ = part.direct != nullptr;
  posts_directly_ ? PostWritten(part) : PostListed(part);
}

void QueueDriver::PostListed(const TransactionPart& part) {
  const CommitEntry& entry = part.entry;
  const ConnectionRecord& connection = record(entry.connection);
  const Transaction& all = reader_->transaction();
  const auto receives =
      all.receives.subspan(part.first_receive, entry.receive_end - connection.receive.committed);
  const auto sends = all.sends.subspan(part.first_send, entry.send_end - connection.send.committed);
  PostCommitted(entry.connection, receives);
  PostCommitted(entry.connection, sends);
}

// Returns null if requests have to wait or the connection's queues cannot be written directly.
[[gnu::always_inline]] inline verbs::mlx5::QueuePair* QueueDriver::DirectQueuesOf(
    uint32_t index) const {
  const ConnectionRecord& connection = record(index);
  if (!CanPost(index, false) || slots_[index].receives_held ||
      connection.send.posted != connection.send.committed ||
      connection.receive.posted != connection.receive.committed) {
    return nullptr;
  }
  verbs::QueuePair* const queue_pair = device_of(index).queue_pair.get();
  verbs::mlx5::QueuePair* const direct =
      queue_pair == nullptr ? nullptr : queue_pair->DirectQueues();
  return direct != nullptr && direct->may_send() ? direct : nullptr;
}

// If an earlier entry has ended the connection, its requests are committed and never posted.
[[gnu::always_inline]] inline void QueueDriver::PostWritten(const TransactionPart& part) {
  ConnectionRecord& connection = record(part.entry.connection);
  const bool live = IsLive(connection);
  ShardCounters& counters = shards_[ShardOf(connection)].counters;
  if (const uint64_t count = part.entry.receive_end - connection.receive.committed; count != 0) {
    connection.receive.committed += count;
    BATON_CRASH_POINT("driver-cursor-folded");
    if (live) {
      counters.receives_committed += count;
      PostBatch<true>(connection, count, part.direct, part.receives_written, counters);
    }
  }
  if (const uint64_t count = part.entry.send_end - connection.send.committed; count != 0) {
    connection.send.committed += count;
    BATON_CRASH_POINT("driver-cursor-folded");
    if (live) {
      counters.sends_committed += count;
      PostBatch<false>(connection, count, part.direct, part.sends_written, counters);
    }
  }
}

template <bool kReceive, typename Batch>
[[gnu::always_inline]] inline void QueueDriver::PostBatch(ConnectionRecord& connection,
                                                          uint64_t count,
                                                          verbs::mlx5::QueuePair* queue_pair,
                                                          const Batch& batch,
                                                          ShardCounters& counters) {
  QueueCursors& cursors = kReceive ? connection.receive : connection.send;
  const uint64_t end = cursors.posted + count;
  arena::StoreRelaxed(kReceive ? connection.receive_attempted : connection.send_attempted,
                      static_cast<uint32_t>(end));
  arena::OrderForCrash();
  BATON_CRASH_POINT("driver-before-post");
  queue_pair->Queue(batch);
  BATON_CRASH_POINT("driver-after-post");
  arena::StoreRelease(cursors.posted, end);
  BATON_CRASH_POINT("driver-posted");
  (kReceive ? counters.receives_posted : counters.sends_posted) += count;
}

template <typename Request>
void QueueDriver::PostCommitted(uint32_t connection, absl::Span<const Request> requests) {
  constexpr bool kReceive = std::is_same_v<Request, verbs::ReceiveRequest>;
  if (requests.empty()) return;
  if (MarkCommitted(connection, kReceive, requests.size())) PostRequests(connection, requests);
}

// Commits the next `count` requests of the queue. Returns true if the caller must post them now.
// Otherwise they were posted here behind those that waited, have to wait, or are never posted.
bool QueueDriver::MarkCommitted(uint32_t index, bool receive, uint64_t count) {
  ConnectionRecord& connection = record(index);
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  const bool nothing_deferred = cursors.posted == cursors.committed;
  cursors.committed += count;
  BATON_CRASH_POINT("driver-cursor-folded");
  if (!IsLive(connection)) return false;  // they are never posted
  ShardCounters& counters = shards_[ShardOf(connection)].counters;
  (receive ? counters.receives_committed : counters.sends_committed) += count;
  if (receive && slots_[index].receives_held) {
    DeliverSpares(index);
    return false;
  }
  if (!CanPost(index, receive)) return false;
  if (!nothing_deferred) PostDeferred(index, receive);
  return nothing_deferred;
}

void QueueDriver::ApplyAcknowledge(uint32_t shard, const CommitEntry& entry) {
  arena::ShardRecord& shard_record = arena_->shard(shard);
  const uint64_t end = entry.acknowledged;
  // Acknowledges at most as many as the log holds: another process may have overwritten
  // `acknowledged` since the entry was checked.
  const uint64_t most = std::min<uint64_t>(end, arena_->shape().completion_log_entries);
  uint64_t next = std::max(shard_record.acknowledged, end - most);
  while (next < end) next = AcknowledgeRun(shard, next, end);
  shard_record.acknowledged = std::max(shard_record.acknowledged, end);
}

// Acknowledges the completion at `begin` and those behind it, before `end`, that are of the same
// queue. One store of the last one's sequence number does it. Returns the index of the next
// completion.
[[gnu::always_inline]] inline uint64_t QueueDriver::AcknowledgeRun(uint32_t shard, uint64_t begin,
                                                                   uint64_t end) {
  const CompletionEntry* const log = &arena_->completion(shard, 0);
  const uint64_t mask = arena_->shape().completion_log_entries - 1;
  const CompletionEntry& first = log[begin & mask];
  constexpr uint32_t kKindAndVoid = arena::FourBytes(0xff, 0, 0, arena::kCompletionVoid);
  const uint32_t what = arena::LoadFourBytes(first.kind) & kKindAndVoid;
  const bool send = what == static_cast<uint32_t>(CompletionKind::kSend);
  const bool receive = what == static_cast<uint32_t>(CompletionKind::kReceive) && !SharesReceives();
  const uint32_t index = arena::LoadRelaxed(first.connection);
  if (!(send || receive) || index >= connection_slots_) [[unlikely]] {
    AcknowledgeOther(shard, first);
    BATON_CRASH_POINT("driver-acknowledging");
    return begin + 1;
  }
  const uint32_t generation = arena::LoadRelaxed(first.generation);
  const CompletionEntry* last = &first;
  uint64_t next = begin + 1;
  for (; next < end; ++next) {
    const CompletionEntry& other = log[next & mask];
    if ((arena::LoadFourBytes(other.kind) & kKindAndVoid) != what || other.connection != index ||
        other.generation != generation) {
      break;
    }
    last = &other;
  }
  if (ConnectionRecord& connection = record(index); connection.generation == generation) {
    (send ? connection.send : connection.receive).acknowledged = last->sequence + 1;
  }
  BATON_CRASH_POINT("driver-acknowledging");
  return next;
}

// A void send or receive acknowledges nothing: its buffers are free when the connection has ended.
void QueueDriver::AcknowledgeOther(uint32_t shard, const CompletionEntry& completion) {
  if (SharesReceives() && arena::IsSharedReceive(completion.wr_id)) {
    return ReturnSharedReceive(shard, completion);
  }
  const uint32_t index = completion.connection;
  if (index >= connection_slots_ || record(index).generation != arena::GenerationOf(completion)) {
    return;
  }
  switch (CompletionKind(completion.kind)) {
    case CompletionKind::kConnectRequest:
      return ForgetRequest(index);
    case CompletionKind::kDisconnected:
    case CompletionKind::kConnectFailed:
      return AcknowledgeEnd(index);
    default:
      return;
  }
}

void QueueDriver::AcknowledgeEnd(uint32_t index) {
  const ConnectionState state = StateOf(record(index));
  if (state == ConnectionState::kClosed) return FreeSlot(index);
  // A dead driver freed the slot and did not finish the acknowledgement.
  if (state == ConnectionState::kFree) return;
  constexpr std::string_view kWhy =
      "its end was acknowledged, and its record says that it has not ended: another process of the "
      "service has written over it";
  observer_->OnConnectionState(index, kWhy);
  StartDraining(index, CompletionStatus::kGeneralError, kWhy);
}

// ---------------------------------------------------------------- posting

bool QueueDriver::CanPost(uint32_t connection, bool receive) const {
  const Slot& slot = slots_[connection];
  if (posts_held_ || (receive ? slot.receives_held : slot.sends_held)) return false;
  const ConnectionState state = StateOf(record(connection));
  return state == ConnectionState::kEstablished ||
         (receive && state == ConnectionState::kConnecting);
}

template <typename Request>
void QueueDriver::PostRequests(uint32_t connection, absl::Span<const Request> requests) {
  constexpr bool kReceive = std::is_same_v<Request, verbs::ReceiveRequest>;
  ConnectionRecord& target = record(connection);
  QueueCursors& cursors = kReceive ? target.receive : target.send;
  ShardCounters& counters = shards_[ShardOf(target)].counters;
  if (device_of(connection).queue_pair == nullptr) [[unlikely]] {
    return StartDraining(connection, CompletionStatus::kGeneralError, kNoQueuePair);
  }
  verbs::QueuePair& queue_pair = *device_of(connection).queue_pair;
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
      StartDraining(connection, CompletionStatus::kGeneralError, MessageOf(status));
      return;
    }
    requests.remove_prefix(chunk.size());
  }
}

// Posts requests that were committed before they could be posted. They have been in a worker's
// memory since, so they are copied and checked again.
void QueueDriver::PostDeferred(uint32_t connection, bool receive) {
  const ConnectionRecord& target = record(connection);
  const QueueCursors& cursors = receive ? target.receive : target.send;
  while (CanPost(connection, receive) && cursors.posted < cursors.committed) {
    const uint64_t wr_id =
        arena::PackWrId(connection, target.generation,
                        receive ? Direction::kReceive : Direction::kSend, cursors.posted);
    one_request_.Clear();
    const absl::Status checked =
        receive
            ? one_request_.AddReceive(arena_->receive_request(connection, cursors.posted), wr_id)
            : one_request_.AddSend(arena_->send_request(connection, cursors.posted), wr_id);
    if (!checked.ok()) {
      StartDraining(connection, CompletionStatus::kGeneralError,
                    absl::StrCat("changed after its commit: ", checked.message()));
      return;
    }
    receive ? PostRequests(connection, one_request_.receives())
            : PostRequests(connection, one_request_.sends());
  }
}

// ---------------------------------------------------------------- completions

absl::StatusOr<bool> QueueDriver::PollCompletions(uint32_t shard) {
  bool took = false, empty = false;
  for (int batch = 0; batch < kBatchesPerPoll && !empty; ++batch) {
    if (batch != 0) shards_[shard].log.Publish();
    const uint64_t ends_noted = ends_noted_;
    BATON_ASSIGN_OR_RETURN(const int taken, TakeBatch(shard));
    took |= taken > 0;
    empty = taken < kPollBatch && ends_noted_ == ends_noted;
  }
  if (empty && !ending_.empty()) FinishEnding(shard);
  if (empty && !abandoned_.empty()) FinishAbandoned(shard);
  BATON_RETURN_IF_ERROR(CheckLog(shard));
  return shards_[shard].log.Publish() || took;
}

// Logs the completions of TakeEach(): plain ones of established connections itself, all others with
// LogCompletion(). A successor that gets a completion again finds it in the log.
class QueueDriver::BatchLogger {
 public:
  static constexpr bool kTogether = true;

  // The completions of one connection's sends or receives, from its next one on.
  template <bool kReceive>
  class Run {
   public:
    [[gnu::always_inline]] Run(BatchLogger* logger, uint64_t wr_id)
        : counters_(logger->queue_->counters), all_(logger->queue_->log), log_(all_) {
      const QueueDriver& driver = *logger->driver_;
      const uint32_t index = arena::WrIdConnection(wr_id);
      if (index >= driver.connection_slots_) [[unlikely]]
        return;
      connection_ = &driver.records_[index];
      const QueueCursors& cursors = kReceive ? connection_->receive : connection_->send;
      const uint64_t sequence = cursors.completed;
      const uint64_t expected = arena::PackWrId(
          0, connection_->generation, kReceive ? Direction::kReceive : Direction::kSend, sequence);
      const bool is_next = (wr_id ^ expected) << arena::kWrIdConnectionBits == 0;
      if (!is_next || StateOf(*connection_) != ConnectionState::kEstablished ||
          connection_->poison != 0) [[unlikely]] {
        return;
      }
      next_wr_id_ = wr_id;
      sequence_ = sequence;
      posted_ = cursors.posted;
      whose_ = arena::TwoFields(index, connection_->generation);
      const RequestLogs& logs = driver.request_logs_[index];
      requests_ = kReceive ? logs.receives : logs.sends;
      mask_ = kReceive ? driver.receive_log_mask_ : driver.send_log_mask_;
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

  BatchLogger(QueueDriver* driver, uint32_t shard)
      : driver_(driver), shard_(shard), queue_(&driver->shards_[shard]) {}
  BatchLogger(const BatchLogger&) = delete;
  BatchLogger& operator=(const BatchLogger&) = delete;

  [[gnu::always_inline]] Run<false> Sends(uint64_t wr_id) { return {this, wr_id}; }
  [[gnu::always_inline]] Run<true> Receives(uint64_t wr_id) { return {this, wr_id}; }
  bool Keep(const verbs::Completion& completion) {
    BATON_CRASH_POINT("driver-polled");
    driver_->LogCompletion(shard_, completion);
    return queue_->log.broken() == nullptr;
  }

 private:
  QueueDriver* const driver_;
  const uint32_t shard_;
  ShardQueue* const queue_;
};

// Logs up to kPollBatch completions, and returns how many the queue had. Completions that are not
// logged stay in the queue or in the slots, for a successor.
[[gnu::always_inline]] inline absl::StatusOr<int> QueueDriver::TakeBatch(uint32_t shard) {
  verbs::CompletionQueue& queue = *objects_->completion_queues[shard];
  verbs::mlx5::CompletionQueue* const direct = queue.DirectQueue();
  if (direct == nullptr) return TakeBatchBySlots(shard);
  BatchLogger logger(this, shard);
  const int taken = direct->TakeEach(kPollBatch, &logger);
  if (taken == verbs::mlx5::CompletionQueue::kNonsense) [[unlikely]]
    return direct->WhyUnknown();
  BATON_RETURN_IF_ERROR(CheckLog(shard));
  return taken;
}

// The slots outlive this process, so a successor finds the completions that were consumed and not
// logged.
absl::StatusOr<int> QueueDriver::TakeBatchBySlots(uint32_t shard) {
  verbs::CompletionQueue& queue = *objects_->completion_queues[shard];
  auto* const slots = reinterpret_cast<verbs::Completion*>(arena_->poll_slots(shard));
  BATON_ASSIGN_OR_RETURN(const int taken, queue.Take({slots, kPollBatch}));
  const auto count = static_cast<size_t>(taken);
  queue.Read({slots, count}, completions_.data());
  for (size_t i = 0; i < count; ++i) {
    BATON_CRASH_POINT("driver-polled");
    LogCompletion(shard, completions_[i]);
  }
  BATON_RETURN_IF_ERROR(CheckLog(shard));
  for (size_t i = 0; i < count; ++i) arena::StoreRelease(slots[i].wr_id, arena::kInvalidWrId);
  return taken;
}

// Polls until the queue was found empty. Nothing is posted meanwhile, so this ends.
absl::Status QueueDriver::DrainCompletions(uint32_t shard) {
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const bool took, PollCompletions(shard));
    if (!took) return absl::OkStatus();
  }
}

absl::Status QueueDriver::LogIsBroken(uint32_t shard) const {
  return absl::DataLossError(absl::StrCat("the completion log of shard ", shard,
                                          " cannot be gone by: ", shards_[shard].log.broken(),
                                          ": another process of the service has written over it"));
}

absl::Status QueueDriver::RequestNotification(uint32_t shard) {
  return objects_->completion_queues[shard]->RequestNotification();
}

// Most completions are of the oldest request that has none. LogUnexpected() handles all others.
void QueueDriver::LogCompletion(uint32_t shard, const verbs::Completion& completion) {
  const uint32_t index = arena::WrIdConnection(completion.wr_id);
  // Drops a completion that names no connection. If another process of the service has overwritten
  // its wr_id, the connection that it belonged to misses it.
  if (index >= connection_slots_) return;
  ConnectionRecord& connection = record(index);
  const Direction direction = arena::WrIdDirection(completion.wr_id);
  const bool receive = direction == Direction::kReceive;
  const uint64_t next = receive ? connection.receive.completed : connection.send.completed;
  if (completion.wr_id != arena::PackWrId(index, connection.generation, direction, next) ||
      IsOver(connection)) {
    return LogUnexpected(shard, index, completion);
  }
  LogRequest(shard, index, receive, completion);
  if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    EndAfterError(index, completion.status);
  } else if (StateOf(connection) == ConnectionState::kDraining) {
    FinishDraining(index);
  }
}

void QueueDriver::LogUnexpected(uint32_t shard, uint32_t index,
                                const verbs::Completion& completion) {
  if (arena::IsSharedReceive(completion.wr_id)) return LogSharedReceive(shard, completion);
  const ConnectionRecord& connection = record(index);
  // The connection was drained and given up, so its completion is dropped.
  if (arena::WrIdGeneration(completion.wr_id) != (connection.generation & 0x7f)) return;
  if (IsOver(connection)) return;
  const bool receive = arena::WrIdDirection(completion.wr_id) == Direction::kReceive;
  const uint64_t sequence = arena::WrIdSequence(completion.wr_id);
  if (sequence >= arena::kMarkerSequence) return LogMarker(index, receive, completion);
  const QueueCursors& cursors = receive ? connection.receive : connection.send;
  const uint64_t ahead = (sequence - cursors.completed) & kSequenceMask;
  if (ahead > kSequenceMask / 2) return;  // a driver that died has logged it already
  FailUnknown(index, "a completion is missing");
}

// Logs the completion of the oldest request that has none. REQUIRES: it has that request's wr_id.
// Fills the entry in its place, without a copy.
void QueueDriver::LogRequest(uint32_t shard, uint32_t index, bool receive,
                             const verbs::Completion& completion) {
  ShardQueue& queue = shards_[shard];
  ConnectionRecord& connection = record(index);
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  const uint64_t sequence = cursors.completed;
  CompletionLog& log = queue.log;
  CompletionEntry* const slot = log.Next();
  if (slot == nullptr) return;
  CompletionEntry& entry = *slot;
  FillEntry(receive ? CompletionKind::kReceive : CompletionKind::kSend, completion, &entry);
  static_assert(offsetof(CompletionEntry, sequence) == offsetof(CompletionEntry, connection) + 8);
  arena::StorePair<offsetof(CompletionEntry, connection)>(
      entry, arena::TwoFields(index, connection.generation), sequence);
  entry.tag = receive ? arena_->receive_request(index, sequence).tag
                      : arena_->send_request(index, sequence).tag;
  if (connection.poison != 0) Spoil(PoisonLevel(connection.poison), &entry);
  log.Append(completion.wr_id);
  arena::StoreRelease(cursors.completed, sequence + 1);
  BATON_CRASH_POINT("driver-completed");
  ++(receive ? queue.counters.receives_completed : queue.counters.sends_completed);
  if (receive) {
    connection.bytes_received += completion.byte_len;
    queue.counters.bytes_received += completion.byte_len;
  }
  if (cursors.posted <= sequence) NoteFoundPosted(queue.counters, connection, receive);
}

// Writes the fields from `kind` to `vendor_error` with one store.
void QueueDriver::FillEntry(CompletionKind kind, const verbs::Completion& completion,
                            CompletionEntry* entry) {
  const uint32_t flags = (completion.has_immediate ? arena::kCompletionHasImmediate : 0u) |
                         (completion.has_invalidate ? arena::kCompletionHasInvalidate : 0u);
  const uint32_t head =
      arena::FourBytes(static_cast<uint8_t>(kind), static_cast<uint8_t>(completion.status),
                       static_cast<uint8_t>(completion.opcode), static_cast<uint8_t>(flags));
  arena::StorePair<offsetof(CompletionEntry, kind)>(
      *entry, arena::TwoFields(head, completion.byte_len),
      arena::TwoFields(completion.immediate, completion.vendor_error));
}

// The request was ambiguous. Its completion shows that it was posted.
void QueueDriver::NoteFoundPosted(ShardCounters& counters, ConnectionRecord& connection,
                                  bool receive) {
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  arena::StoreRelease(cursors.posted, cursors.completed);
  ++(receive ? counters.receives_posted : counters.sends_posted);
  if (!IsLive(connection)) ++(receive ? counters.receives_committed : counters.sends_committed);
  if (!receive) ++recovery_.sends_found_posted;
}

// Returns false if the log is broken; the caller then must not change state.
bool QueueDriver::LogEvent(uint32_t index, CompletionKind kind, CompletionStatus status) {
  const ConnectionRecord& connection = record(index);
  ShardQueue& queue = shards_[ShardOf(connection)];
  if (!queue.operated) {  // its owner has another driver
    observer_->OnConnectionState(index,
                                 "cannot be told to its owner: another process of the service has "
                                 "written over the shard in its record");
    return true;
  }
  arena::CompletionEntry entry = {};
  entry.wr_id =
      arena::PackWrId(index, connection.generation, Direction::kSend, arena::kEventSequence);
  entry.kind = static_cast<uint8_t>(kind);
  entry.status = static_cast<uint8_t>(status);
  entry.connection = index;
  entry.generation = connection.generation;
  entry.tag = connection.tag;
  Spoil(PoisonLevel(connection.poison), &entry);
  return queue.log.Append(entry);
}

// ---------------------------------------------------------------- ends of connections

// A request of the connection has completed with an error. Devices give completions and connection
// events separately, so the error may be polled before events that happened before it. A connection
// that is being established therefore waits for its event: OnEstablished() ends it, and any other
// event says why it ends.
void QueueDriver::EndAfterError(uint32_t index, CompletionStatus status) {
  ConnectionRecord& connection = record(index);
  if (StateOf(connection) != ConnectionState::kConnecting) {
    return StartDraining(index, status, verbs::CompletionStatusName(status));
  }
  const bool first = CompletionStatus(connection.last_status) == CompletionStatus::kSuccess;
  if (first) connection.last_status = static_cast<uint32_t>(status);
}

// Ends the connection if one of its requests failed before it was established. Returns whether it
// did.
bool QueueDriver::EndIfFailedBefore(uint32_t index) {
  const auto status = CompletionStatus(record(index).last_status);
  if (status == CompletionStatus::kSuccess) return false;
  StartDraining(index, status, verbs::CompletionStatusName(status));
  return true;
}

// Sets the queue pair to the error state, never to RESET: the device flushes what is outstanding,
// and the last completion ends the connection (P4: until then the device may touch its buffers).
void QueueDriver::StartDraining(uint32_t index, CompletionStatus status, std::string_view reason) {
  ConnectionRecord& connection = record(index);
  if (!IsLive(connection)) return;
  connection.last_status = static_cast<uint32_t>(status);
  slots_[index].end_reason = std::string(reason);
  BATON_CRASH_POINT("driver-before-draining");
  SetState(connection, ConnectionState::kDraining);
  BATON_CRASH_POINT("driver-draining");
  // Requests that are not posted by now never will be.
  ShardCounters& counters = shards_[ShardOf(connection)].counters;
  counters.sends_committed -= connection.send.committed - connection.send.posted;
  counters.receives_committed -= connection.receive.committed - connection.receive.posted;
  EndConnection(index);
}

// Idempotent: a driver may have died in this function.
void QueueDriver::EndConnection(uint32_t index) {
  const ConnectionRecord& connection = record(index);
  const DeviceObjects::Connection& device = device_of(index);
  if (device.id) {
    const bool unanswered = connection.listener_port != 0 && connection.answered == 0;
    // An error is ignored: the queue pair goes to the error state whether the peer was told or not.
    (void)(unanswered ? device.id->Reject("") : device.id->Disconnect());
  }
  BATON_CRASH_POINT("driver-peer-told");
  // Sets the state even if it is the error state already: another process may have set it, and what
  // this driver has posted since would stay in the queues.
  if (device.queue_pair) {
    const absl::Status error = device.queue_pair->SetError();
    if (!error.ok()) slots_[index].end_reason += absl::StrCat("; ", error.message());
  }
  AskFate(index, true);
  AskFate(index, false);
  FinishDraining(index);
}

void QueueDriver::FinishDraining(uint32_t index) {
  ConnectionRecord& connection = record(index);
  if (StateOf(connection) != ConnectionState::kDraining || !Drained(index)) return;
  if (SharesReceives() && device_of(index).queue_pair) {
    // Receives that the queue pair took are in the completion queue by now, but not all in the log.
    if (std::exchange(slots_[index].ending, true)) return;
    ending_.push_back(index);
    ++ends_noted_;
    return;
  }
  FreeSpares(index, true, ~0u);
  const bool was_established = connection.was_established != 0;
  if (!LogEvent(index,
                was_established ? CompletionKind::kDisconnected : CompletionKind::kConnectFailed,
                CompletionStatus(connection.last_status))) {
    return;
  }
  SetState(connection, ConnectionState::kClosed);
  BATON_CRASH_POINT("driver-closed");
  observer_->OnConnectionState(
      index,
      absl::StrCat(was_established ? "ended: " : "not established: ", slots_[index].end_reason));
}

absl::Status QueueDriver::CheckDeviceKept() const {
  if (device_lost_.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the device is given up: ", device_lost_));
}

namespace {

// Other threads read the state of a free slot, and nothing else of it.
void ClearAllButState(ConnectionRecord* connection) {
  constexpr size_t kBefore = offsetof(ConnectionRecord, state);
  constexpr size_t kAfter = kBefore + sizeof(connection->state);
  auto* const bytes = reinterpret_cast<uint8_t*>(connection);
  std::memset(bytes, 0, kBefore);
  std::memset(bytes + kAfter, 0, sizeof(*connection) - kAfter);
}

}  // namespace

// Readers see the slot as free until its new user sets its state.
absl::StatusOr<uint32_t> QueueDriver::TakeSlot(uint32_t shard) {
  BATON_RETURN_IF_ERROR(CheckDeviceKept());
  if (free_slots_.empty()) return NoSlotFree(slots_.size());
  const uint32_t index = free_slots_.front();
  free_slots_.pop_front();
  ConnectionRecord& fresh = record(index);
  const uint32_t generation = fresh.generation + 1;
  ClearAllButState(&fresh);
  fresh.generation = generation;
  fresh.shard = shard;
  BATON_CRASH_POINT("driver-slot-taken");
  ++connection_count_;
  ++arena_->shard(shard).connections;
  return index;
}

void QueueDriver::FreeSlot(uint32_t index) {
  ConnectionRecord& connection = record(index);
  DropObjects(index);
  const auto known = by_queue_pair_.find(connection.qp_number);
  if (known != by_queue_pair_.end() && known->second == index) by_queue_pair_.erase(known);
  const bool request_in_log = slots_[index].request_in_log;
  slots_[index] = Slot{};
  slots_[index].request_in_log = request_in_log;
  SetState(connection, ConnectionState::kFree);
  BATON_CRASH_POINT("driver-slot-freed");
  --arena_->shard(ShardOf(connection)).connections;
  --connection_count_;
  // With several drivers, another one may operate the shard whose log has the request.
  // `baton-driver` checks both shards.
  if (!request_in_log || !sole_) GiveSlot(index);
}

void QueueDriver::GiveSlot(uint32_t index) {
  if (sole_) {
    free_slots_.push_back(index);
  } else {
    observer_->OnSlotFree(index);
  }
}

void QueueDriver::DropObjects(uint32_t index) {
  DeviceObjects::Connection& device = device_of(index);
  // An event that a dead driver received and did not handle is obsolete.
  if (objects_->has_event && device.id && objects_->event.id == device.id.get()) {
    objects_->has_event = false;
  }
  device.id.reset();
  BATON_CRASH_POINT("driver-id-freed");
  device.queue_pair.reset();
  BATON_CRASH_POINT("driver-queue-pair-freed");
}

// A connection that was accepted into another shard can have ended there while its request still
// takes room in the log of the first. Its slot is used again only now, because that log could
// overflow otherwise.
void QueueDriver::ForgetRequest(uint32_t index) {
  if (!std::exchange(slots_[index].request_in_log, false)) return;
  if (sole_ && StateOf(record(index)) == ConnectionState::kFree) GiveSlot(index);
}

// ---------------------------------------------------------------- connection manager

absl::StatusOr<verbs::Address> QueueDriver::Listen(const verbs::Address& address) {
  if (objects_->FindListener(address) == nullptr) BATON_RETURN_IF_ERROR(CheckDeviceKept());
  return ListenOnce(device_, objects_.get(), address);
}

// The connection may have a queue pair of the pool already: a driver took it and died, or
// `baton-driver` connects it. The driver must find it by its number even if its shard is broken.
absl::Status QueueDriver::CreateQueuePair(uint32_t index) {
  const uint32_t shard = ShardOf(record(index));
  const bool broken = SharesReceives() && IsBroken(shard);
  if (sole_ || device_of(index).queue_pair == nullptr) {
    if (broken) return BrokenQueue();
    BATON_ASSIGN_OR_RETURN(
        device_of(index).queue_pair,
        device_->CreateQueuePair(objects_->QueuePairOptionsOf(arena_->shape(), shard)));
  }
  record(index).qp_number = device_of(index).queue_pair->number();
  by_queue_pair_[record(index).qp_number] = index;
  return broken ? BrokenQueue() : absl::OkStatus();
}

absl::StatusOr<uint32_t> QueueDriver::Connect(uint32_t shard, const verbs::Address& address,
                                              std::string_view private_data, uint64_t tag) {
  BATON_ASSIGN_OR_RETURN(const uint32_t index, TakeSlot(shard));
  ConnectionRecord& connection = record(index);
  connection.tag = tag;
  absl::Status status = CreateQueuePair(index);
  BATON_CRASH_POINT("driver-connect-queue-pair");
  if (status.ok()) {
    verbs::ConnectionParameters parameters;
    parameters.private_data = std::string(private_data);
    parameters.check_route = RouteCheckOf(gate_);
    auto id = device_->Connect(address, device_of(index).queue_pair.get(), parameters);
    status = id.status();
    if (id.ok()) device_of(index).id = *std::move(id);
  }
  if (!status.ok()) {
    FreeSlot(index);
    return status;
  }
  BATON_CRASH_POINT("driver-connect-begun");
  device_of(index).id->context = reinterpret_cast<void*>(uintptr_t{index} + 1);
  connection.answered = 1;
  SetText(connection.peer_address, absl::StrCat(address.host, ":", address.port));
  SetState(connection, ConnectionState::kConnecting);
  BATON_CRASH_POINT("driver-connecting");
  return index;
}

uint32_t QueueDriver::LeastUsedShard() const {
  uint32_t best = 0;
  for (uint32_t i = 1; i < shards_.size(); ++i) {
    if (IsBroken(i)) continue;
    if (IsBroken(best) || arena_->shard(i).connections < arena_->shard(best).connections) best = i;
  }
  return best;
}

bool QueueDriver::HandleEvent(uint32_t* shard) {
  *shard = kNoShard;
  verbs::CmEvent& event = objects_->event;
  if (!objects_->has_event) objects_->has_event = device_->NextEvent(&event);
  if (!objects_->has_event) return false;
  BATON_CRASH_POINT("driver-event-taken");
  if (event.type == verbs::CmEventType::kConnectRequest) {
    // The event has no id if a driver died that had handled it and not cleared has_event.
    if (event.new_id) {
      sole_ ? OnConnectRequest(event, shard) : OnAssignedRequest(event, shard);
    }
  } else if (const auto context = reinterpret_cast<uintptr_t>(event.id->context)) {
    OnEvent(static_cast<uint32_t>(context - 1), event);
    *shard = ShardOf(record(static_cast<uint32_t>(context - 1)));
  }  // else an id that was refused before it had a slot
  BATON_CRASH_POINT("driver-event-handled");
  objects_->has_event = false;
  if (*shard != kNoShard) shards_[*shard].log.Publish();
  return true;
}

// ---------------------------------------------------------------- the device

uint32_t QueueDriver::FindQueuePair(uint32_t number) const {
  const auto found = by_queue_pair_.find(number);
  if (found == by_queue_pair_.end()) return DriverObserver::kNoConnection;
  const ConnectionRecord& connection = record(found->second);
  const bool its = connection.qp_number == number && StateOf(connection) != ConnectionState::kFree;
  return its ? found->second : DriverObserver::kNoConnection;
}

bool QueueDriver::HandleDeviceEvent(uint32_t* shard) {
  *shard = kNoShard;
  bool& has_event = objects_->has_device_event;
  if (!has_event) has_event = device_->NextDeviceEvent(&objects_->device_event);
  if (!has_event) return false;
  BATON_CRASH_POINT("driver-device-event-taken");
  ApplyDeviceEvent(objects_->device_event, shard);
  has_event = false;
  return true;
}

// Idempotent: the successor of a driver that died here calls it again.
void QueueDriver::ApplyDeviceEvent(verbs::DeviceEvent event, uint32_t* shard) {
  uint32_t connection = DriverObserver::kNoConnection;
  if (event.qp_number != 0) connection = FindQueuePair(event.qp_number);
  if (event.type == verbs::DeviceEventType::kLastWorkRequestReached) {
    // Part of every end, so it is not reported.
    if (connection != DriverObserver::kNoConnection) FinishDraining(connection);
    return;
  }
  const uint32_t sharing = objects_->ShardOf(event.shared_receive_queue);
  if (sharing != kNoShard) event.text = absl::StrCat("of shard ", sharing, ": ", event.text);
  observer_->OnDeviceEvent(event, connection);
  if (sharing != kNoShard && event.type == verbs::DeviceEventType::kSharedReceiveQueueLow) {
    shards_[sharing].limit_armed = false;
    shards_[sharing].low_ns = MonotonicNanoseconds();
  }
  if (sharing != kNoShard && event.type == verbs::DeviceEventType::kSharedReceiveQueueFailed) {
    RefuseShared(sharing, event.text);
    shards_[sharing].log.Publish();
    *shard = sharing;
  }
  if (event.type == verbs::DeviceEventType::kQueuePairFailed &&
      connection != DriverObserver::kNoConnection) {
    // Perhaps no request is outstanding that would complete with an error.
    StartDraining(connection, CompletionStatus::kGeneralError, event.text);
    *shard = ShardOf(record(connection));
    shards_[*shard].log.Publish();
  }
}

void QueueDriver::EndAll(std::string_view why) {
  device_lost_ = std::string(why);
  objects_->listeners.clear();
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    if (Operates(ShardOf(record(index)))) StartDraining(index, CompletionStatus::kFatalError, why);
  }
  for (ShardQueue& shard : shards_) {
    if (shard.operated) shard.log.Publish();
  }
}

uint32_t QueueDriver::DisconnectAll(std::string_view why) {
  uint32_t count = 0;
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    if (!IsLive(record(index)) || !Operates(ShardOf(record(index)))) continue;
    StartDraining(index, CompletionStatus::kSuccess, why);
    ++count;
  }
  for (ShardQueue& shard : shards_) {
    if (shard.operated) shard.log.Publish();
  }
  return count;
}

bool QueueDriver::AllEnded() const {
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    if (!Operates(ShardOf(record(index)))) continue;
    if (IsLive(record(index)) || StateOf(record(index)) == ConnectionState::kDraining) return false;
  }
  return true;
}

void QueueDriver::GiveUp(uint32_t shard, std::string_view why) {
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    if (record(index).shard != shard) continue;
    StartDraining(index, CompletionStatus::kGeneralError, why);
    if (StateOf(record(index)) != ConnectionState::kDraining || record(index).abandoned != 0) {
      continue;
    }
    Abandon(index, why);
  }
  // Logs earlier completions if they can be polled.
  if (DrainCompletions(shard).ok()) return;
  FinishAbandoned(shard);
  shards_[shard].log.Publish();
}

void QueueDriver::OnEvent(uint32_t index, const verbs::CmEvent& event) {
  switch (event.type) {
    case verbs::CmEventType::kEstablished:
      OnEstablished(index, event.private_data);
      break;
    case verbs::CmEventType::kRejected:
      StartDraining(index, CompletionStatus::kGeneralError,
                    absl::StrCat("rejected by the peer: ", event.status.message()));
      break;
    case verbs::CmEventType::kUnreachable:
      StartDraining(index, CompletionStatus::kRetryExceeded, MessageOf(event.status));
      break;
    default:
      if (event.status.ok()) {
        StartDraining(index, CompletionStatus::kSuccess, "disconnected by the peer");
      } else {
        StartDraining(index, CompletionStatus::kFatalError, MessageOf(event.status));
      }
  }
}

// The state follows the entry in the log: a successor that finds the entry stores the state.
void QueueDriver::OnConnectRequest(verbs::CmEvent& event, uint32_t* shard) {
  if (const absl::Status may = AdmitRequest(gate_, connection_count_, &event); !may.ok()) {
    return observer_->OnRefusedConnection(MessageOf(may));
  }
  const uint32_t target = LeastUsedShard();
  absl::StatusOr<uint32_t> index = IsBroken(target) ? BrokenQueue() : TakeSlot(target);
  if (!index.ok()) {
    Refuse(&event, IsBroken(target) ? "baton: the service's device is broken"
                                    : "baton: no connection slot is free");
    observer_->OnRefusedConnection(MessageOf(index.status()));
    return;
  }
  ConnectionRecord& connection = record(*index);
  FillPrivateData(event.private_data, &connection);
  connection.listener_port = event.listener ? event.listener->address().port : 0;
  event.new_id->context = reinterpret_cast<void*>(uintptr_t{*index} + 1);
  FillAddresses(*event.new_id, &connection);
  slots_[*index].request_in_log = true;
  if (!LogEvent(*index, CompletionKind::kConnectRequest, CompletionStatus::kSuccess)) return;
  SetState(connection, ConnectionState::kRequested);
  BATON_CRASH_POINT("driver-requested");
  device_of(*index).id = std::move(event.new_id);
  BATON_CRASH_POINT("driver-id-kept");
  *shard = target;
}

// One of several drivers handles a request: `baton-driver` has assigned a slot in one of this
// driver's shards to the connection, and has filled its record.
void QueueDriver::OnAssignedRequest(verbs::CmEvent& event, uint32_t* shard) {
  const auto index = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event.new_id->context) - 1);
  ConnectionRecord& connection = record(index);
  *shard = ShardOf(connection);
  if (connection.listener_port == 0) return OnAssignedConnect(index, event);
  if (StateOf(connection) == ConnectionState::kFree && IsBroken(*shard)) {
    Refuse(&event, "baton: the service's device is broken");
    observer_->OnRefusedConnection(MessageOf(BrokenQueue()));
    observer_->OnSlotFree(index);
    return;
  }
  // Otherwise a driver that died has logged it.
  if (StateOf(connection) == ConnectionState::kFree) {
    ++connection_count_;
    ++arena_->shard(*shard).connections;
    slots_[index].request_in_log = true;
    if (!LogEvent(index, CompletionKind::kConnectRequest, CompletionStatus::kSuccess)) return;
    SetState(connection, ConnectionState::kRequested);
    BATON_CRASH_POINT("driver-requested");
  }
  device_of(index).id = std::move(event.new_id);
  BATON_CRASH_POINT("driver-id-kept");
}

// The connection has its queue pair, and `baton-driver` is connecting it to a peer.
void QueueDriver::OnAssignedConnect(uint32_t index, verbs::CmEvent& event) {
  ConnectionRecord& connection = record(index);
  if (StateOf(connection) == ConnectionState::kFree) {
    ++connection_count_;
    ++arena_->shard(ShardOf(connection)).connections;
    connection.answered = 1;
    SetState(connection, ConnectionState::kConnecting);
    BATON_CRASH_POINT("driver-connecting");
  }
  device_of(index).id = std::move(event.new_id);
  const absl::Status usable = CreateQueuePair(index);
  if (!usable.ok()) StartDraining(index, CompletionStatus::kGeneralError, MessageOf(usable));
}

void QueueDriver::OnEstablished(uint32_t index, const std::string& private_data) {
  ConnectionRecord& connection = record(index);
  if (StateOf(connection) != ConnectionState::kConnecting) return;
  if (connection.listener_port == 0) FillPrivateData(private_data, &connection);
  const verbs::ReadDepths depths = device_of(index).id->depths();
  connection.initiator_depth = depths.ours;
  connection.responder_resources = depths.theirs;
  connection.was_established = 1;
  slots_[index].established_ns = MonotonicNanoseconds();
  if (sole_) FillAddresses(*device_of(index).id, &connection);
  if (!LogEvent(index, CompletionKind::kEstablished, CompletionStatus::kSuccess)) return;
  SetState(connection, ConnectionState::kEstablished);
  BATON_CRASH_POINT("driver-established");
  observer_->OnConnectionState(index, "established");
  if (EndIfFailedBefore(index)) return;
  PostDeferred(index, true);
  PostDeferred(index, false);
}

std::string QueueDriver::CopyPrivateData(uint32_t index, uint32_t length) const {
  std::string data(length, '\0');
  std::memcpy(data.data(), arena_->private_data(index), length);
  return data;
}

// Returns true if both shards have the same owner. A native driver operates only shards that it
// owns, or that it inherits from one dead owner.
bool QueueDriver::MayMove(uint32_t from, uint32_t to) const {
  if (!sole_) return Operates(to);
  return arena::OwnershipSlot(arena_->shard(from).owner.ownership) ==
         arena::OwnershipSlot(arena_->shard(to).owner.ownership);
}

// The request may have gone in the meantime (the peer gave up): then an accept has no effect.
void QueueDriver::PrepareAccept(uint32_t shard, const CommitEntry& entry) {
  ConnectionRecord& connection = record(entry.connection);
  if (StateOf(connection) != ConnectionState::kRequested) return;
  if (entry.target_shard != connection.shard) {
    if (!MayMove(shard, entry.target_shard)) {
      StartDraining(entry.connection, CompletionStatus::kGeneralError,
                    "accepted into a shard that the worker does not own");
      return;
    }
    --arena_->shard(shard).connections;
    ++arena_->shard(entry.target_shard).connections;
    ShardCounters& from = shards_[shard].counters;
    ShardCounters& to = shards_[entry.target_shard].counters;
    const uint64_t sends = connection.send.committed - connection.send.posted;
    const uint64_t receives = connection.receive.committed - connection.receive.posted;
    from.sends_committed -= sends;
    to.sends_committed += sends;
    from.receives_committed -= receives;
    to.receives_committed += receives;
    arena::StoreRelease(connection.arriving, uint8_t{1});
    arena::StoreRelease(connection.shard, entry.target_shard);
    BATON_CRASH_POINT("driver-accept-moved");
  }
  const absl::Status created = CreateQueuePair(entry.connection);
  if (!created.ok()) {
    StartDraining(entry.connection, CompletionStatus::kGeneralError, MessageOf(created));
    return;
  }
  BATON_CRASH_POINT("driver-accept-queue-pair");
  SetState(connection, ConnectionState::kConnecting);
  BATON_CRASH_POINT("driver-accepting");
}

// The connection has arrived once every later driver of its new shard can do without this commit.
void QueueDriver::FinishAccept(const CommitEntry& entry) {
  AnswerAccept(entry);
  arena::StoreRelease(record(entry.connection).arriving, uint8_t{0});
  BATON_CRASH_POINT("driver-arrived");
}

void QueueDriver::AnswerAccept(const CommitEntry& entry) {
  ConnectionRecord& connection = record(entry.connection);
  if (StateOf(connection) != ConnectionState::kConnecting || connection.answered != 0) return;
  arena::StoreRelaxed(connection.answered, uint8_t{1});
  if (!device_of(entry.connection).id || !device_of(entry.connection).queue_pair) {
    return StartDraining(entry.connection, CompletionStatus::kGeneralError, kNoQueuePair);
  }
  BATON_CRASH_POINT("driver-before-accept");
  verbs::ConnectionParameters parameters;
  parameters.private_data = CopyPrivateData(entry.connection, entry.private_data_length);
  const DeviceObjects::Connection& device = device_of(entry.connection);
  const absl::Status accepted = device.id->Accept(device.queue_pair.get(), parameters);
  BATON_CRASH_POINT("driver-accepted");
  if (!accepted.ok()) {
    StartDraining(entry.connection, CompletionStatus::kGeneralError, MessageOf(accepted));
  }
}

void QueueDriver::Reject(const CommitEntry& entry) {
  ConnectionRecord& connection = record(entry.connection);
  if (StateOf(connection) != ConnectionState::kRequested) return;
  DeviceObjects::Connection& device = device_of(entry.connection);
  absl::Status rejected;
  if (device.id) {
    rejected = device.id->Reject(CopyPrivateData(entry.connection, entry.private_data_length));
  }
  BATON_CRASH_POINT("driver-rejected");
  device.id.reset();  // rejects, if Reject() has not
  StartDraining(entry.connection, CompletionStatus::kSuccess,
                rejected.ok() ? "rejected by the worker"
                              : absl::StrCat("rejected by the worker, the peer was not told why: ",
                                             rejected.message()));
}

void QueueDriver::ForgetUnacknowledged(uint32_t shard) {
  arena::CommitEntry all = {};
  all.acknowledged = arena_->shard(shard).completion_tail;
  ApplyAcknowledge(shard, all);
}

}  // namespace baton::driver
