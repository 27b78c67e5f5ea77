#include "lib/driver/queue_driver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/driver/poison.h"

namespace baton::driver {
namespace {

using arena::CommitEntry;
using arena::CommitKind;
using arena::CompletionKind;
using arena::ConnectionRecord;
using arena::ConnectionState;
using arena::Direction;
using arena::PoisonLevel;
using arena::QueueCursors;
using verbs::CompletionStatus;

constexpr size_t kPostChunk = 64;
constexpr size_t kPollBatch = 64;
constexpr int kListenBacklog = 1024;
constexpr uint64_t kEventSequence = 0xff'ffff'ffff;

ConnectionState StateOf(const ConnectionRecord& record) { return ConnectionState(record.state); }

bool IsLive(const ConnectionRecord& record) {
  return StateOf(record) == ConnectionState::kRequested ||
         StateOf(record) == ConnectionState::kConnecting ||
         StateOf(record) == ConnectionState::kEstablished;
}

void SetState(ConnectionRecord& record, ConnectionState state) {
  arena::StoreRelease(record.state, static_cast<uint32_t>(state));
}

// Text of a fixed field, cut to fit and always ended with NUL.
template <size_t size>
void SetText(char (&field)[size], std::string_view text) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

}  // namespace

QueueDriver::QueueDriver(arena::Arena* arena, verbs::Device* device, DriverObserver* observer)
    : arena_(arena),
      device_(device),
      observer_(observer),
      reader_(*arena),
      slots_(arena->shape().connections),
      grants_(arena::kGrants),
      sends_(kPostChunk),
      receives_(kPostChunk),
      sges_(kPostChunk * arena::kMaxSges),
      completions_(kPollBatch) {
  for (uint32_t i = 0; i < arena->shape().connections; ++i) free_slots_.push_back(i);
}

QueueDriver::~QueueDriver() = default;

absl::StatusOr<std::unique_ptr<QueueDriver>> QueueDriver::Create(arena::Arena* arena,
                                                                 verbs::Device* device,
                                                                 DriverObserver* observer) {
  std::unique_ptr<QueueDriver> driver(new QueueDriver(arena, device, observer));
  BATON_ASSIGN_OR_RETURN(
      driver->buffers_region_,
      device->RegisterMemory(arena->buffers(), arena->shape().buffer_bytes, verbs::kLocalWrite));
  const arena::Shape& shape = arena->shape();
  const uint64_t entries =
      uint64_t{shape.connections} * (shape.send_queue_depth + shape.receive_queue_depth);
  const uint32_t most = device->limits().max_completion_queue_entries;
  if (entries > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all connections of a shard can have ", entries,
                     " requests outstanding, and a completion "
                     "queue of device ",
                     std::string(device->name()), " has ", most,
                     " entries: lower max_connections or the queue depths"));
  }
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    BATON_ASSIGN_OR_RETURN(auto queue,
                           device->CreateCompletionQueue(static_cast<uint32_t>(entries)));
    driver->shards_.push_back({std::move(queue), CompletionLog(*arena, i), {}});
  }
  return driver;
}

// ---------------------------------------------------------------- commits

uint64_t QueueDriver::PendingEntries(uint32_t shard) const {
  const arena::ShardRecord& record = arena_->shard(shard);
  const uint64_t epoch = arena::OwnershipEpoch(record.owner.ownership);
  const uint64_t tail = arena::LoadAcquire(arena_->bank(shard, epoch).tail);
  if (!arena::CursorIsOf(tail, epoch)) return 0;  // a late store of another epoch
  const uint64_t pending = arena::CursorIndex(tail) - arena::CursorIndex(record.commit_head);
  return pending <= arena::kCommitLogEntries ? pending : 1;
}

CommitOutcome QueueDriver::ApplyNext(uint32_t shard, absl::Status* error) {
  arena::ShardRecord& record = arena_->shard(shard);
  const uint64_t epoch = arena::OwnershipEpoch(record.owner.ownership);
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
  *error = reader_.Read(shard, epoch, head, tail);
  if (!error->ok()) return CommitOutcome::kInvalid;
  const Transaction& transaction = reader_.transaction();
  Apply(shard, transaction);
  ++shards_[shard].counters.transactions;
  arena::StoreRelaxed(record.transactions, shards_[shard].counters.transactions);
  arena::StoreRelease(record.commit_head, arena::PackCursor(epoch, head + transaction.entries));
  const bool released = CommitKind(transaction.parts.back().entry.kind) == CommitKind::kRelease;
  return released ? CommitOutcome::kReleased : CommitOutcome::kApplied;
}

// Order within a transaction: queue pairs of accepted connections exist before their receives are
// posted, receives before sends, connections end before their slots can be acknowledged away.
void QueueDriver::Apply(uint32_t shard, const Transaction& transaction) {
  for (const TransactionPart& part : transaction.parts) {
    if (CommitKind(part.entry.kind) == CommitKind::kAccept) PrepareAccept(shard, part.entry);
  }
  for (const TransactionPart& part : transaction.parts) {
    if (CommitKind(part.entry.kind) == CommitKind::kConnection) ApplyConnection(part);
    if (CommitKind(part.entry.kind) == CommitKind::kShardState) ApplyShardState(shard, part.entry);
  }
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
  }
  for (const TransactionPart& part : transaction.parts) {
    if (CommitKind(part.entry.kind) == CommitKind::kAcknowledge)
      ApplyAcknowledge(shard, part.entry);
  }
}

void QueueDriver::ApplyShardState(uint32_t shard, const CommitEntry& entry) {
  arena::ShardRecord& record = arena_->shard(shard);
  record.state_length = entry.state_length;
  record.state_version = entry.state_version;
  record.state_slot = entry.state_slot;
}

void QueueDriver::ApplyConnection(const TransactionPart& part) {
  const CommitEntry& entry = part.entry;
  ConnectionRecord& connection = record(entry.connection);
  if (entry.state_slot != arena::kKeepState) {
    connection.state_length = entry.state_length;
    connection.state_version = entry.state_version;
    connection.state_slot = entry.state_slot;
  }
  ShardCounters& counters = shards_[connection.shard].counters;
  const arena::WorkRequest* requests = reader_.transaction().requests.data();
  for (const bool receive : {true, false}) {
    QueueCursors& cursors = receive ? connection.receive : connection.send;
    const uint64_t end = receive ? entry.receive_end : entry.send_end;
    const uint64_t fresh = end - cursors.committed;
    if (fresh == 0) continue;
    const bool nothing_deferred = cursors.posted == cursors.committed;
    cursors.committed = end;
    if (!IsLive(connection)) continue;  // never to be posted
    (receive ? counters.receives_committed : counters.sends_committed) += fresh;
    if (!CanPost(connection, receive)) continue;
    if (nothing_deferred) {
      PostRequests(entry.connection, receive,
                   {requests + (receive ? part.first_receive : part.first_send), fresh});
    } else {
      PostDeferred(entry.connection, receive);
    }
  }
}

void QueueDriver::ApplyAcknowledge(uint32_t shard, const CommitEntry& entry) {
  arena::ShardRecord& shard_record = arena_->shard(shard);
  for (uint64_t i = shard_record.acknowledged; i < entry.acknowledged; ++i) {
    const arena::CompletionEntry& completion = arena_->completion(shard, i);
    ConnectionRecord& connection = record(completion.connection);
    if (connection.generation != arena::GenerationOf(completion)) continue;
    // Nobody was told of a void completion: its buffers come back with the connection's end.
    const bool told = (completion.flags & arena::kCompletionVoid) == 0;
    switch (CompletionKind(completion.kind)) {
      case CompletionKind::kSend:
        if (told) connection.send.acknowledged = completion.sequence + 1;
        break;
      case CompletionKind::kReceive:
        if (told) connection.receive.acknowledged = completion.sequence + 1;
        break;
      case CompletionKind::kConnectRequest:
        ForgetRequest(completion.connection);
        break;
      case CompletionKind::kDisconnected:
      case CompletionKind::kConnectFailed:
        FreeSlot(completion.connection);
        break;
      default:
        break;
    }
  }
  shard_record.acknowledged = std::max(shard_record.acknowledged, entry.acknowledged);
}

// ---------------------------------------------------------------- posting

bool QueueDriver::CanPost(const ConnectionRecord& connection, bool receive) const {
  const ConnectionState state = StateOf(connection);
  return state == ConnectionState::kEstablished ||
         (receive && state == ConnectionState::kConnecting);
}

void QueueDriver::PostRequests(uint32_t connection, bool receive,
                               absl::Span<const arena::WorkRequest> requests) {
  ConnectionRecord& target = record(connection);
  QueueCursors& cursors = receive ? target.receive : target.send;
  ShardCounters& counters = shards_[target.shard].counters;
  while (!requests.empty()) {
    const auto chunk = requests.subspan(0, kPostChunk);
    size_t posted = 0;
    const absl::Status status = PostChunk(connection, receive, chunk, &posted);
    arena::StoreRelease(cursors.posted, cursors.posted + posted);
    (receive ? counters.receives_posted : counters.sends_posted) += posted;
    if (!status.ok()) {
      StartDraining(connection, CompletionStatus::kGeneralError, MessageOf(status));
      return;
    }
    requests.remove_prefix(chunk.size());
  }
}

// For work requests that were committed before they could be posted: they have been in a worker's
// memory since, so they are copied and checked again.
void QueueDriver::PostDeferred(uint32_t connection, bool receive) {
  ConnectionRecord& target = record(connection);
  QueueCursors& cursors = receive ? target.receive : target.send;
  while (IsLive(target) && cursors.posted < cursors.committed) {
    const arena::WorkRequest request =
        arena::CopyOnce(receive ? arena_->receive_request(connection, cursors.posted)
                                : arena_->send_request(connection, cursors.posted));
    const absl::Status checked =
        TransactionReader::CheckRequest(request, receive, arena_->shape().buffer_bytes);
    if (!checked.ok()) {
      StartDraining(connection, CompletionStatus::kGeneralError,
                    absl::StrCat("changed after its commit: ", checked.message()));
      return;
    }
    PostRequests(connection, receive, {&request, 1});
  }
}

absl::Status QueueDriver::PostChunk(uint32_t connection, bool receive,
                                    absl::Span<const arena::WorkRequest> requests, size_t* posted) {
  const ConnectionRecord& target = record(connection);
  const uint64_t base = reinterpret_cast<uint64_t>(arena_->buffers());
  const uint32_t lkey = buffers_region_->lkey();
  uint64_t sequence = receive ? target.receive.posted : target.send.posted;
  const Direction direction = receive ? Direction::kReceive : Direction::kSend;
  size_t sge = 0;
  for (size_t i = 0; i < requests.size(); ++i, ++sequence) {
    const arena::WorkRequest& from = requests[i];
    const size_t first = sge;
    for (int j = 0; j < from.sge_count; ++j) {
      sges_[sge++] = {base + from.sges[j].offset, from.sges[j].length, lkey};
    }
    const absl::Span<const verbs::ScatterGather> list(sges_.data() + first, from.sge_count);
    const uint64_t wr_id = arena::PackWrId(connection, target.generation, direction, sequence);
    if (receive) {
      receives_[i] = {wr_id, list};
      continue;
    }
    sends_[i] = {wr_id,
                 verbs::Opcode(from.opcode),
                 (from.flags & arena::kRequestFence) != 0,
                 (from.flags & arena::kRequestSolicited) != 0,
                 from.immediate,
                 from.invalidate_rkey,
                 from.remote_address,
                 from.rkey,
                 from.compare_add,
                 from.swap,
                 list};
  }
  verbs::QueuePair& queue_pair = *slots_[connection].queue_pair;
  return receive ? queue_pair.PostReceive({receives_.data(), requests.size()}, posted)
                 : queue_pair.PostSend({sends_.data(), requests.size()}, posted);
}

// ---------------------------------------------------------------- completions

absl::StatusOr<bool> QueueDriver::PollCompletions(uint32_t shard) {
  ShardQueue& queue = shards_[shard];
  for (;;) {
    BATON_ASSIGN_OR_RETURN(
        const int count, queue.completion_queue->Poll({completions_.data(), completions_.size()}));
    for (int i = 0; i < count; ++i) LogCompletion(shard, completions_[i]);
    if (count < static_cast<int>(completions_.size())) break;
  }
  return queue.log.Publish();
}

absl::Status QueueDriver::RequestNotification(uint32_t shard) {
  return shards_[shard].completion_queue->RequestNotification();
}

void QueueDriver::LogCompletion(uint32_t shard, const verbs::Completion& completion) {
  const uint32_t index = arena::WrIdConnection(completion.wr_id);
  BATON_CHECK(index < slots_.size());
  ConnectionRecord& connection = record(index);
  // A completion of a connection that was drained and given up can no longer be told anybody.
  if (arena::WrIdGeneration(completion.wr_id) != (connection.generation & 0x7f)) return;
  const bool receive = arena::WrIdDirection(completion.wr_id) == Direction::kReceive;
  QueueCursors& cursors = receive ? connection.receive : connection.send;
  BATON_CHECK(arena::WrIdSequence(completion.wr_id) == (cursors.completed & 0xff'ffff'ffff));

  arena::CompletionEntry entry = {};
  entry.wr_id = completion.wr_id;
  entry.kind = static_cast<uint8_t>(receive ? CompletionKind::kReceive : CompletionKind::kSend);
  entry.status = static_cast<uint8_t>(completion.status);
  entry.opcode = static_cast<uint8_t>(completion.opcode);
  entry.flags =
      static_cast<uint8_t>((completion.has_immediate ? arena::kCompletionHasImmediate : 0) |
                           (completion.has_invalidate ? arena::kCompletionHasInvalidate : 0));
  entry.byte_len = completion.byte_len;
  entry.immediate = completion.immediate;
  entry.vendor_error = completion.vendor_error;
  entry.connection = index;
  entry.generation = connection.generation;
  entry.sequence = cursors.completed;
  entry.tag = receive ? arena_->receive_request(index, cursors.completed).tag
                      : arena_->send_request(index, cursors.completed).tag;
  Spoil(PoisonLevel(connection.poison), &entry);
  shards_[shard].log.Append(entry);
  arena::StoreRelease(cursors.completed, cursors.completed + 1);
  ShardCounters& counters = shards_[shard].counters;
  ++(receive ? counters.receives_completed : counters.sends_completed);
  if (receive) connection.bytes_received += completion.byte_len;
  if (completion.status != CompletionStatus::kSuccess && IsLive(connection)) {
    StartDraining(index, completion.status, verbs::CompletionStatusName(completion.status));
  } else if (StateOf(connection) == ConnectionState::kDraining) {
    FinishDraining(index);
  }
}

void QueueDriver::LogEvent(uint32_t index, CompletionKind kind, CompletionStatus status) {
  const ConnectionRecord& connection = record(index);
  arena::CompletionEntry entry = {};
  entry.wr_id = arena::PackWrId(index, connection.generation, Direction::kSend, kEventSequence);
  entry.kind = static_cast<uint8_t>(kind);
  entry.status = static_cast<uint8_t>(status);
  entry.connection = index;
  entry.generation = connection.generation;
  entry.tag = connection.tag;
  Spoil(PoisonLevel(connection.poison), &entry);
  ShardQueue& queue = shards_[connection.shard];
  queue.log.Append(entry);
}

// ---------------------------------------------------------------- ends of connections

// Goes to the error state, never to RESET: the device flushes what is outstanding, and the last
// completion ends the connection (P4: only then nothing touches its buffers any more).
void QueueDriver::StartDraining(uint32_t index, CompletionStatus status, std::string_view reason) {
  ConnectionRecord& connection = record(index);
  if (!IsLive(connection)) return;
  Slot& slot = slots_[index];
  connection.last_status = static_cast<uint32_t>(status);
  slot.end_reason = std::string(reason);
  const bool unanswered = connection.listener_port != 0 && !slot.connecting;
  SetState(connection, ConnectionState::kDraining);
  // What was not posted by now never will be.
  ShardCounters& counters = shards_[connection.shard].counters;
  counters.sends_committed -= connection.send.committed - connection.send.posted;
  counters.receives_committed -= connection.receive.committed - connection.receive.posted;
  if (slot.id) {
    // Failing to tell the peer changes nothing here: the queue pair goes to the error state.
    (void)(unanswered ? slot.id->Reject("") : slot.id->Disconnect());
  }
  if (slot.queue_pair && slot.queue_pair->state() != verbs::QueuePairState::kError) {
    const absl::Status error = slot.queue_pair->SetError();
    if (!error.ok()) slot.end_reason += absl::StrCat("; ", error.message());
  }
  FinishDraining(index);
}

void QueueDriver::FinishDraining(uint32_t index) {
  ConnectionRecord& connection = record(index);
  if (connection.send.posted != connection.send.completed ||
      connection.receive.posted != connection.receive.completed) {
    return;
  }
  Slot& slot = slots_[index];
  SetState(connection, ConnectionState::kClosed);
  LogEvent(index,
           slot.was_established ? CompletionKind::kDisconnected : CompletionKind::kConnectFailed,
           CompletionStatus(connection.last_status));
  observer_->OnConnectionState(
      index, absl::StrCat(slot.was_established ? "ended: " : "not established: ", slot.end_reason));
}

absl::StatusOr<uint32_t> QueueDriver::TakeSlot(uint32_t shard) {
  if (free_slots_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", slots_.size(), " connections of the service are in use: raise max_connections"));
  }
  const uint32_t index = free_slots_.front();
  free_slots_.pop_front();
  ConnectionRecord& connection = record(index);
  const uint32_t generation = connection.generation + 1;
  connection = ConnectionRecord{};
  connection.generation = generation;
  connection.shard = shard;
  ++connection_count_;
  ++arena_->shard(shard).connections;
  return index;
}

void QueueDriver::FreeSlot(uint32_t index) {
  ConnectionRecord& connection = record(index);
  BATON_CHECK(StateOf(connection) == ConnectionState::kClosed);
  Slot& slot = slots_[index];
  slot.id.reset();
  slot.queue_pair.reset();
  const bool request_in_log = slot.request_in_log;
  slot = Slot{};
  slot.request_in_log = request_in_log;
  SetState(connection, ConnectionState::kFree);
  --arena_->shard(connection.shard).connections;
  --connection_count_;
  if (!request_in_log) free_slots_.push_back(index);
}

// A connection that was accepted into another shard can have ended there while its request still
// takes room in the log of the first. Its slot serves again only now, or that log would overflow.
void QueueDriver::ForgetRequest(uint32_t index) {
  slots_[index].request_in_log = false;
  if (StateOf(record(index)) == ConnectionState::kFree) free_slots_.push_back(index);
}

// ---------------------------------------------------------------- connection manager

bool QueueDriver::IsListening(const verbs::Address& address) const {
  return FindListener(address) != nullptr;
}

const verbs::Listener* QueueDriver::FindListener(const verbs::Address& address) const {
  for (const ListenerSlot& slot : listeners_) {
    if (slot.asked.host == address.host &&
        (slot.asked.port == address.port || slot.listener->address().port == address.port)) {
      return slot.listener.get();
    }
  }
  return nullptr;
}

absl::StatusOr<verbs::Address> QueueDriver::Listen(const verbs::Address& address) {
  if (const verbs::Listener* existing = FindListener(address)) return existing->address();
  BATON_ASSIGN_OR_RETURN(auto listener, device_->Listen(address, kListenBacklog));
  const verbs::Address bound = listener->address();
  listeners_.push_back({std::move(listener), address});
  return bound;
}

std::vector<verbs::Address> QueueDriver::listeners() const {
  std::vector<verbs::Address> addresses;
  for (const ListenerSlot& slot : listeners_) addresses.push_back(slot.listener->address());
  return addresses;
}

absl::Status QueueDriver::CreateQueuePair(uint32_t index) {
  verbs::CompletionQueue* queue = shards_[record(index).shard].completion_queue.get();
  BATON_ASSIGN_OR_RETURN(
      slots_[index].queue_pair,
      device_->CreateQueuePair({queue, queue, arena_->shape().send_queue_depth,
                                arena_->shape().receive_queue_depth, arena::kMaxSges}));
  record(index).qp_number = slots_[index].queue_pair->number();
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> QueueDriver::Connect(uint32_t shard, const verbs::Address& address,
                                              std::string_view private_data, uint64_t tag) {
  BATON_ASSIGN_OR_RETURN(const uint32_t index, TakeSlot(shard));
  ConnectionRecord& connection = record(index);
  connection.tag = tag;
  absl::Status status = CreateQueuePair(index);
  if (status.ok()) {
    verbs::ConnectionParameters parameters;
    parameters.private_data = std::string(private_data);
    auto id = device_->Connect(address, slots_[index].queue_pair.get(), parameters);
    status = id.status();
    if (id.ok()) slots_[index].id = *std::move(id);
  }
  if (!status.ok()) {
    SetState(connection, ConnectionState::kClosed);
    FreeSlot(index);
    return status;
  }
  slots_[index].id->context = reinterpret_cast<void*>(uintptr_t{index} + 1);
  slots_[index].connecting = true;
  SetText(connection.peer_address, absl::StrCat(address.host, ":", address.port));
  SetState(connection, ConnectionState::kConnecting);
  return index;
}

uint32_t QueueDriver::LeastUsedShard() const {
  uint32_t best = 0;
  for (uint32_t i = 1; i < shards_.size(); ++i) {
    if (arena_->shard(i).connections < arena_->shard(best).connections) best = i;
  }
  return best;
}

bool QueueDriver::HandleEvent(uint32_t* shard) {
  *shard = kNoShard;
  verbs::CmEvent event;
  if (!device_->NextEvent(&event)) return false;
  if (event.type == verbs::CmEventType::kConnectRequest) {
    OnConnectRequest(std::move(event), shard);
  } else {
    const uintptr_t context = reinterpret_cast<uintptr_t>(event.id->context);
    if (context == 0) return true;  // an id that was refused before it had a slot
    const uint32_t index = static_cast<uint32_t>(context - 1);
    *shard = record(index).shard;
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
        StartDraining(index, CompletionStatus::kSuccess, "disconnected by the peer");
    }
  }
  if (*shard != kNoShard) shards_[*shard].log.Publish();
  return true;
}

void QueueDriver::OnConnectRequest(verbs::CmEvent event, uint32_t* shard) {
  const uint32_t target = LeastUsedShard();
  absl::StatusOr<uint32_t> index = TakeSlot(target);
  if (!index.ok()) {
    (void)event.new_id->Reject("baton: no connection slot is free");
    observer_->OnRefusedConnection(MessageOf(index.status()));
    return;
  }
  ConnectionRecord& connection = record(*index);
  const size_t length = std::min<size_t>(event.private_data.size(), arena::kPrivateDataBytes);
  std::memcpy(connection.private_data, event.private_data.data(), length);
  connection.private_data_length = static_cast<uint32_t>(length);
  connection.listener_port = event.listener ? event.listener->address().port : 0;
  slots_[*index].id = std::move(event.new_id);
  slots_[*index].id->context = reinterpret_cast<void*>(uintptr_t{*index} + 1);
  FillAddresses(*index);
  slots_[*index].request_in_log = true;
  SetState(connection, ConnectionState::kRequested);
  LogEvent(*index, CompletionKind::kConnectRequest, CompletionStatus::kSuccess);
  *shard = target;
}

void QueueDriver::FillAddresses(uint32_t index) {
  const verbs::Address local = slots_[index].id->local_address();
  const verbs::Address peer = slots_[index].id->peer_address();
  SetText(record(index).local_address, absl::StrCat(local.host, ":", local.port));
  SetText(record(index).peer_address, absl::StrCat(peer.host, ":", peer.port));
}

void QueueDriver::OnEstablished(uint32_t index, const std::string& private_data) {
  ConnectionRecord& connection = record(index);
  if (StateOf(connection) != ConnectionState::kConnecting) return;
  if (connection.listener_port == 0) {
    const size_t length = std::min<size_t>(private_data.size(), arena::kPrivateDataBytes);
    std::memcpy(connection.private_data, private_data.data(), length);
    connection.private_data_length = static_cast<uint32_t>(length);
  }
  slots_[index].was_established = true;
  FillAddresses(index);
  SetState(connection, ConnectionState::kEstablished);
  LogEvent(index, CompletionKind::kEstablished, CompletionStatus::kSuccess);
  observer_->OnConnectionState(index, "established");
  PostDeferred(index, true);
  PostDeferred(index, false);
}

std::string QueueDriver::CopyPrivateData(uint32_t index, uint32_t length) const {
  std::string data(length, '\0');
  std::memcpy(data.data(), arena_->private_data(index), length);
  return data;
}

// The request may have gone in the meantime (the peer gave up): then an accept has no effect.
void QueueDriver::PrepareAccept(uint32_t shard, const CommitEntry& entry) {
  ConnectionRecord& connection = record(entry.connection);
  if (StateOf(connection) != ConnectionState::kRequested) return;
  if (entry.target_shard != shard) {
    if (arena::OwnershipSlot(arena_->shard(entry.target_shard).owner.ownership) !=
        arena::OwnershipSlot(arena_->shard(shard).owner.ownership)) {
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
    connection.shard = entry.target_shard;
  }
  const absl::Status created = CreateQueuePair(entry.connection);
  if (!created.ok()) {
    StartDraining(entry.connection, CompletionStatus::kGeneralError, MessageOf(created));
    return;
  }
  SetState(connection, ConnectionState::kConnecting);
}

void QueueDriver::FinishAccept(const CommitEntry& entry) {
  Slot& slot = slots_[entry.connection];
  if (StateOf(record(entry.connection)) != ConnectionState::kConnecting || slot.connecting) return;
  slot.connecting = true;
  verbs::ConnectionParameters parameters;
  parameters.private_data = CopyPrivateData(entry.connection, entry.private_data_length);
  const absl::Status accepted = slot.id->Accept(slot.queue_pair.get(), parameters);
  if (!accepted.ok()) {
    StartDraining(entry.connection, CompletionStatus::kGeneralError, MessageOf(accepted));
  }
}

void QueueDriver::Reject(const CommitEntry& entry) {
  ConnectionRecord& connection = record(entry.connection);
  if (StateOf(connection) != ConnectionState::kRequested) return;
  Slot& slot = slots_[entry.connection];
  (void)slot.id->Reject(CopyPrivateData(entry.connection, entry.private_data_length));
  slot.id.reset();
  StartDraining(entry.connection, CompletionStatus::kSuccess, "rejected by the worker");
}

// ---------------------------------------------------------------- remote access

absl::StatusOr<uint32_t> QueueDriver::Grant(uint64_t offset, uint64_t length, uint32_t access) {
  const uint64_t total = arena_->shape().buffer_bytes;
  if (length == 0 || offset > total || length > total - offset) {
    return absl::InvalidArgumentError(absl::StrCat("offset, length: ", length, " bytes at ", offset,
                                                   " are not within the ", total,
                                                   " bytes of the buffers"));
  }
  const auto free = std::find(grants_.begin(), grants_.end(), nullptr);
  if (free == grants_.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", grants_.size(), " grants of the service are in use: revoke one"));
  }
  BATON_ASSIGN_OR_RETURN(*free,
                         device_->RegisterMemory(arena_->buffers() + offset, length, access));
  const auto index = static_cast<uint32_t>(free - grants_.begin());
  arena::GrantRecord& grant = arena_->grant(index);
  grant.offset = offset;
  grant.rkey = (*free)->rkey();
  grant.access = access;
  arena::StoreRelease(grant.length, length);
  return index;
}

absl::Status QueueDriver::Revoke(uint32_t grant) {
  if (grant >= grants_.size() || !grants_[grant]) {
    return absl::NotFoundError(absl::StrCat("grant ", grant, " does not exist"));
  }
  grants_[grant].reset();
  arena::StoreRelease(arena_->grant(grant).length, uint64_t{0});
  return absl::OkStatus();
}

void QueueDriver::ForgetUnacknowledged(uint32_t shard) {
  arena::CommitEntry all = {};
  all.acknowledged = arena_->shard(shard).completion_tail;
  ApplyAcknowledge(shard, all);
}

}  // namespace baton::driver
