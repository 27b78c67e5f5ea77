// This is the worker's half of the commit protocol (lib/arena/layout.md): staging and committing.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/stream/ring.h"
#include "worker/heap.h"
#include "worker/work_requests.h"
#include "worker/worker_shards.h"

namespace baton {
namespace {

using arena::CommitEntry;
using arena::CommitKind;

// The same as the driver's limit (lib/driver/transaction.h).
constexpr uint32_t kMaxStagedRequests = 4096;
// Each completion is delivered with room for so many: a stream posts the receives of its whole
// window, and reports.
constexpr uint32_t kRequestsPerCompletion = 256;
static_assert(kRequestsPerCompletion > stream::kMaxWindow);
// A transaction with more is crowded: the next completion belongs to another one.
constexpr uint32_t kCrowdedRequests = kMaxStagedRequests - kRequestsPerCompletion;

// The driver has read the entry, so another processor has it in its cache. Fetched now, it is on
// its way back when it is needed.
inline void FetchRequest(const arena::WorkRequest& request) {
  arena::FetchToWrite(&request);
  arena::FetchToWrite(&request.sges);
}

// Returns how many more requests a queue and its log have room for.
inline uint32_t RoomOf(uint64_t staged, uint64_t completed, uint64_t acknowledged, uint32_t depth) {
  const uint64_t log = 2 * uint64_t{depth} - (staged - acknowledged);
  const uint64_t queue = depth - std::min<uint64_t>(staged - completed, depth);
  return static_cast<uint32_t>(std::min(log, queue));
}

// Requests before the returned sequence number have room in the queue and in the log.
inline uint64_t RoomEnd(uint64_t completed, uint64_t acknowledged, uint32_t depth) {
  return std::min(completed + depth, acknowledged + 2 * uint64_t{depth});
}

}  // namespace

bool Connection::established() const {
  const arena::ConnectionRecord& record = shard_->shards_->arena().connection(index_);
  return arena::LoadAcquire(record.state) ==
         static_cast<uint32_t>(arena::ConnectionState::kEstablished);
}

std::string_view Connection::peer_address() const {
  const arena::ConnectionRecord& record = shard_->shards_->arena().connection(index_);
  return {record.peer_address, strnlen(record.peer_address, sizeof(record.peer_address))};
}

// Another native worker can write the record, so the length is limited to the field's.
std::string_view Connection::private_data() const {
  const arena::ConnectionRecord& record = shard_->shards_->arena().connection(index_);
  return {reinterpret_cast<const char*>(record.private_data),
          std::min(arena::LoadRelaxed(record.private_data_length), arena::kPrivateDataBytes)};
}

absl::Span<const uint8_t> Connection::state() const {
  return {shard_->shards_->arena().connection_state(index_, state_slot_), state_length_};
}

uint32_t Connection::state_version() const { return state_version_; }

uint32_t Connection::send_room() const {
  return RoomOf(send_staged_, send_completed_, send_acknowledged_,
                shard_->shards_->arena().shape().send_queue_depth);
}

uint32_t Connection::receive_room() const {
  return RoomOf(receive_staged_, receive_completed_, receive_acknowledged_,
                arena::ReceiveDepth(shard_->shards_->arena().shape()));
}

struct Shard::Staged {
  // Entries kept free for what Commit itself adds (shard state, acknowledgement), and for the
  // release, which must always be possible after a commit.
  static constexpr uint32_t kReservedEntries = 8;

  // Returns how many entries `receives` shared receives need.
  static size_t SharedEntries(size_t receives) {
    return (receives + arena::kSharedReceivesPerEntry - 1) / arena::kSharedReceivesPerEntry;
  }

  std::vector<arena::CommitEntry> entries;
  std::vector<Connection*> connections;  // those with a kConnection entry
  std::vector<uint16_t> shared;          // slots of shared receives
  bool has_state = false;
  struct More {
    bool staged = false;  // state, or changes of the heap
    bool totals = false;  // the heap's, which are not told
    // Looks at both at once, because each message asks.
    bool any() const { return std::bit_cast<uint16_t>(*this) != 0; }
  } more;
  bool moves = false;  // a connection is accepted into another shard
  arena::CommitEntry state = {};
  uint32_t requests = 0;
};

Shard::Shard(WorkerShards* shards, uint32_t index)
    : shards_(shards),
      index_(index),
      record_(&shards->arena().shard(index)),
      log_(&shards->arena().completion(index, 0)),
      log_mask_(shards->arena().shape().completion_log_entries - 1),
      send_log_mask_(2 * uint64_t{shards->arena().shape().send_queue_depth} - 1),
      receive_log_mask_(2 * uint64_t{shards->arena().shape().receive_queue_depth} - 1),
      shared_bytes_(arena::HeapOffset(shards->arena().shape(), 0)),
      send_depth_(shards->arena().shape().send_queue_depth),
      receive_depth_(arena::ReceiveDepth(shards->arena().shape())),
      entries_per_completion_(2u + (receive_depth_ == 0 ? 1u : 0u) +
                              (shards->arena().shape().heap_pages != 0 ? 1u : 0u)),
      plain_opcodes_(PlainOpcodes(shards->arena().header())),
      most_send_bytes_(MostSendBytes(shards->arena().header())),
      staged_(std::make_unique<Staged>()),
      heap_begin_(arena::HeapOffset(shards->arena().shape(), index)),
      heap_bytes_(arena::HeapBytes(shards->arena().shape())) {
  if (shards->arena().shape().heap_pages != 0) heap_.reset(new Heap(this));
  staged_->entries.reserve(arena::kMaxTransactionEntries);
  staged_->connections.reserve(arena::kMaxTransactionEntries);
  const uint32_t slots = arena::SharedReceiveSlots(shards->arena().shape());
  staged_->shared.reserve(std::min(slots, kMaxStagedRequests));
  shared_free_.reserve(slots);
  shared_unacknowledged_.reserve(slots);
  unacknowledged_.reserve(shards->arena().shape().connections);
}

Shard::~Shard() = default;

[[gnu::always_inline]] inline arena::UsableBuffers Shard::usable() const {
  return {shared_bytes_, heap_begin_, heap_bytes_};
}

Worker& Shard::worker() const { return shards_->worker(); }

CommitMode Shard::commit_mode() const { return shards_->commit_mode(); }

absl::Span<const uint8_t> Shard::state() const {
  return {shards_->arena().shard_state(index_, state_slot_), state_length_};
}

absl::Status Shard::WhyUnusable(const Connection& connection) const {
  if (epoch_ == 0) {
    return absl::AbortedError(absl::StrCat("shard ", index_, " is not ours any more"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("connection ", connection.index_, " has ended or moved to another shard"));
}

// Refuses READs and atomics if the peer answers none, which is known once the connection is
// established.
absl::Status Shard::CheckPeer(const Connection& connection, verbs::Opcode opcode) const {
  const arena::Arena& arena = shards_->arena();
  if (arena.header().tells_depths == 0 || !connection.established() ||
      arena.connection(connection.index_).initiator_depth != 0) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("opcode: ", std::string(verbs::OpcodeName(opcode)),
                                               " on connection ", connection.index_,
                                               ", whose peer answers no READs and atomics"));
}

// Delivery needs room for several entries, and whatever is staged for one. So a crowded transaction
// shows room for one entry at a time, and delivery waits for its commit.
[[gnu::always_inline]] inline void Shard::LimitIfCrowded() const {
  if (staged_->requests > kCrowdedRequests || (heap_ != nullptr && heap_->IsCrowded())) [[unlikely]]
    entries_left_ = std::min(entries_left_, 1u);
}

// Counts a request that has not taken the fast path, which makes no transaction crowded.
[[gnu::always_inline]] inline void Shard::NoteStagedRequest() {
  if (++staged_->requests > kCrowdedRequests) [[unlikely]]
    LimitIfCrowded();
}

uint32_t Shard::EntryRoom() const {
  uint64_t log_room = arena::kCommitLogEntries - (commit_tail_ - folded_);
  if (log_room < arena::kMaxTransactionEntries) {
    folded_ = arena::CursorIndex(arena::LoadAcquire(shards_->arena().shard(index_).commit_head));
    log_room = arena::kCommitLogEntries - (commit_tail_ - folded_);
  }
  const uint64_t room = std::min<uint64_t>(log_room, arena::kMaxTransactionEntries);
  const uint64_t used = staged_->entries.size() + Staged::SharedEntries(staged_->shared.size()) +
                        (heap_ != nullptr ? heap_->entries() : 0) + Staged::kReservedEntries;
  entries_left_ = room > used ? static_cast<uint32_t>(room - used) : 0;
  LimitIfCrowded();
  return entries_left_;
}

// Takes room for an entry of the open transaction. Returns false if there is none.
bool Shard::TakeHeapEntry() {
  if (!HasEntryRoom(1)) return false;
  --entries_left_;
  staged_->more.staged = true;
  return true;
}

// The next commit tells the heap's totals.
void Shard::NoteHeapChange() { staged_->more.totals = true; }

absl::Status Shard::AddConnection(Connection& connection) {
  if (!HasEntryRoom(1)) [[unlikely]] {
    return absl::ResourceExhaustedError(
        "no room in the commit log: commit, and go on when the driver has caught up");
  }
  --entries_left_;
  CommitEntry& entry = staged_->entries.emplace_back();
  entry.kind = static_cast<uint8_t>(CommitKind::kConnection);
  entry.connection = connection.index_;
  entry.generation = connection.generation_;
  entry.state_slot = arena::kKeepState;
  staged_->connections.push_back(&connection);
  connection.entry_ = static_cast<uint32_t>(staged_->entries.size());
  return absl::OkStatus();
}

namespace {

// The application may have read `state` out of a slot.
void CopyState(absl::Span<const uint8_t> state, uint8_t* slot) {
  if (!state.empty()) std::memmove(slot, state.data(), state.size());
}

}  // namespace

// Returns whether the connection is in the open transaction, which another request does not crowd.
[[gnu::always_inline]] inline bool Shard::MayStageMore(const Connection& connection) const {
  return connection.entry_ != 0 && connection.shard_ == this && connection.known_epoch_ == epoch_ &&
         staged_->requests < kCrowdedRequests;
}

// The fast path: a request of one buffer that is not its connection's first in the transaction.
absl::Status Shard::Receive(Connection& connection, absl::Span<const Buffer> buffers,
                            uint64_t tag) {
  const uint64_t sequence = connection.receive_staged_;
  if (sequence >= RoomEnd(connection.receive_completed_, connection.receive_acknowledged_,
                          receive_depth_) ||
      !MayStageMore(connection) || buffers.size() != 1 ||
      !usable().Has(buffers[0].offset, buffers[0].length)) [[unlikely]] {
    return StageReceive(connection, buffers, tag);
  }
  FillPlain(/*head=*/0, buffers[0], /*immediate=*/0, tag,
            &connection.receive_log_[sequence & receive_log_mask_]);
  connection.receive_staged_ = sequence + 1;
  ++staged_->requests;
  BATON_CRASH_POINT("worker-receive-staged");
  return absl::OkStatus();
}

absl::Status Shard::StageReceive(Connection& connection, absl::Span<const Buffer> buffers,
                                 uint64_t tag) {
  BATON_RETURN_IF_ERROR(CheckUsable(connection));
  const uint64_t sequence = connection.receive_staged_;
  const uint64_t end =
      RoomEnd(connection.receive_completed_, connection.receive_acknowledged_, receive_depth_);
  if (sequence >= end || staged_->requests == kMaxStagedRequests) {
    return WhyNoReceive();
  }
  // Nobody reads it before it is committed.
  BATON_RETURN_IF_ERROR(FillReceive(buffers, tag, usable(), shards_->arena(),
                                    &connection.receive_log_[sequence & receive_log_mask_]));
  BATON_RETURN_IF_ERROR(EnterConnection(connection));
  connection.receive_staged_ = sequence + 1;
  NoteStagedRequest();
  BATON_CRASH_POINT("worker-receive-staged");
  return absl::OkStatus();
}

absl::Status Shard::WhyNoReceive() const {
  if (receive_depth_ != 0) return absl::ResourceExhaustedError("no room in the receive log");
  return absl::FailedPreconditionError(
      "the connections of the service share their receives (shared_receive_queue_depth): post "
      "them with ReceiveShared");
}

absl::Status Shard::ReceiveShared(absl::Span<const Buffer> buffers, uint64_t tag) {
  if (epoch_ == 0) return absl::AbortedError("the shard is not ours any more");
  const arena::Shape& shape = shards_->arena().shape();
  if (!arena::HasSharedReceives(shape)) {
    return absl::FailedPreconditionError(
        "each connection of the service has receives of its own: post them with Receive, or set "
        "shared_receive_queue_depth");
  }
  arena::WorkRequest request = {};
  BATON_RETURN_IF_ERROR(FillReceive(buffers, tag, usable(), shards_->arena(), &request));
  if (shared_receive_room() == 0 || staged_->requests == kMaxStagedRequests) {
    return absl::ResourceExhaustedError("no room for a shared receive");
  }
  const bool needs_entry = staged_->shared.size() % arena::kSharedReceivesPerEntry == 0;
  if (needs_entry && !HasEntryRoom(1)) {
    return absl::ResourceExhaustedError(
        "no room in the commit log: commit, and go on when the driver has caught up");
  }
  entries_left_ -= needs_entry ? 1 : 0;
  const uint16_t slot = shared_free_.back();
  shards_->arena().shared_receive_request(index_, slot) = request;
  shared_free_.pop_back();
  staged_->shared.push_back(slot);
  ++shared_outstanding_;
  NoteStagedRequest();
  BATON_CRASH_POINT("worker-shared-receive-staged");
  return absl::OkStatus();
}

// Counts the receives that the driver will find free and within the depth. Receives that may or may
// not be posted hold their slots, and do not count as posted.
uint32_t Shard::shared_receive_room() const {
  const uint32_t depth = shards_->arena().shape().shared_receive_queue_depth;
  if (epoch_ == 0 || depth == 0) return 0;
  const uint32_t unsure = arena::LoadRelaxed(shards_->arena().shard(index_).shared_receives_unsure);
  const uint32_t counted = shared_outstanding_ - std::min(unsure, shared_outstanding_);
  const uint32_t room = depth - std::min(depth, counted);
  return std::min(room, static_cast<uint32_t>(shared_free_.size()));
}

// Called at an adoption. From then on only this worker's acknowledgements free slots.
void Shard::LoadSharedReceives() {
  const arena::Arena& arena = shards_->arena();
  shared_free_.clear();
  shared_outstanding_ = 0;
  for (uint32_t slot = arena::SharedReceiveSlots(arena.shape()); slot-- > 0;) {
    const arena::SharedReceive receive = {
        arena::LoadAcquire(arena.shared_receive(index_, slot).word)};
    if (arena::StateOf(receive) == arena::SharedReceiveState::kFree) {
      shared_free_.push_back(static_cast<uint16_t>(slot));
    } else {
      ++shared_outstanding_;
    }
  }
}

absl::Status Shard::Send(Connection& connection, const SendWork& work) {
  return StagePlainSend(connection, work) ? absl::OkStatus() : StageSend(connection, work);
}

// The fast path: one buffer, no READ or atomic, and not its connection's first request in the
// transaction. Otherwise returns false and does nothing.
[[gnu::always_inline]] inline bool Shard::StagePlainSend(Connection& connection,
                                                         const SendWork& work) {
  const uint64_t sequence = connection.send_staged_;
  const auto opcode = static_cast<uint8_t>(work.opcode);
  if (sequence >= RoomEnd(connection.send_completed_, connection.send_acknowledged_, send_depth_) ||
      !MayStageMore(connection) || work.buffers.size() != 1 || opcode >= verbs::kOpcodeCount ||
      (plain_opcodes_ >> opcode & 1) == 0) [[unlikely]] {
    return false;
  }
  const Buffer& buffer = work.buffers[0];
  if (!usable().Has(buffer.offset, buffer.length) || buffer.length > most_send_bytes_) [[unlikely]]
    return false;
  arena::WorkRequest* const log = connection.send_log_;
  arena::WorkRequest& request = log[sequence & send_log_mask_];
  const uint32_t flags = (work.fence ? uint32_t{arena::kRequestFence} : 0) |
                         (work.solicited ? uint32_t{arena::kRequestSolicited} : 0);
  FillPlain(opcode | flags << 8, buffer, work.immediate, work.tag, &request);
  FillRemote(work, &request);
  connection.send_staged_ = sequence + 1;
  ++staged_->requests;
  FetchRequest(log[(sequence + 2) & send_log_mask_]);
  BATON_CRASH_POINT("worker-send-staged");
  return true;
}

absl::Status Shard::StageSend(Connection& connection, const SendWork& work) {
  BATON_RETURN_IF_ERROR(CheckUsable(connection));
  const uint64_t sequence = connection.send_staged_;
  const uint64_t end =
      RoomEnd(connection.send_completed_, connection.send_acknowledged_, send_depth_);
  if (sequence >= end || staged_->requests == kMaxStagedRequests) {
    return absl::ResourceExhaustedError("no room in the send log");
  }
  // Nobody reads it before it is committed.
  BATON_RETURN_IF_ERROR(
      FillSend(work, usable(), shards_->arena(), &connection.send_log_[sequence & send_log_mask_]));
  if (verbs::IsAnswered(work.opcode)) BATON_RETURN_IF_ERROR(CheckPeer(connection, work.opcode));
  BATON_RETURN_IF_ERROR(EnterConnection(connection));
  connection.send_staged_ = sequence + 1;
  NoteStagedRequest();
  BATON_CRASH_POINT("worker-send-staged");
  return absl::OkStatus();
}

absl::Status Shard::SetState(Connection& connection, absl::Span<const uint8_t> state,
                             uint32_t version) {
  BATON_RETURN_IF_ERROR(CheckUsable(connection));
  const uint32_t capacity = shards_->arena().shape().connection_state_bytes;
  if (state.size() > capacity) {
    return Invalid("state: ", state.size(), " bytes, the service keeps ", capacity,
                   " (connection_state_bytes)");
  }
  BATON_RETURN_IF_ERROR(EnterConnection(connection));
  const uint32_t slot = 1 - connection.state_slot_;
  CopyState(state, shards_->arena().connection_state(connection.index_, slot));
  CommitEntry& entry = staged_->entries[connection.entry_ - 1];
  entry.state_slot = slot;
  entry.state_length = static_cast<uint32_t>(state.size());
  entry.state_version = version;
  BATON_CRASH_POINT("worker-state-staged");
  return absl::OkStatus();
}

absl::Status Shard::SetShardState(absl::Span<const uint8_t> state, uint32_t version) {
  if (epoch_ == 0) return absl::AbortedError("the shard is not ours any more");
  const uint32_t capacity = shards_->arena().shape().shard_state_bytes;
  if (state.size() > capacity) {
    return Invalid("state: ", state.size(), " bytes, the service keeps ", capacity,
                   " (shard_state_bytes)");
  }
  const uint32_t slot = 1 - state_slot_;
  CopyState(state, shards_->arena().shard_state(index_, slot));
  staged_->has_state = staged_->more.staged = true;
  staged_->state = {};
  staged_->state.kind = static_cast<uint8_t>(CommitKind::kShardState);
  staged_->state.state_slot = slot;
  staged_->state.state_length = static_cast<uint32_t>(state.size());
  staged_->state.state_version = version;
  return absl::OkStatus();
}

absl::Status Shard::StageDecision(Connection& connection, uint8_t kind, uint32_t shard,
                                  std::string_view private_data) {
  BATON_RETURN_IF_ERROR(CheckUsable(connection));
  if (private_data.size() > arena::kPrivateDataBytes) {
    return Invalid("private_data: ", private_data.size(), " bytes, at most ",
                   arena::kPrivateDataBytes);
  }
  if (!HasEntryRoom(1)) return absl::ResourceExhaustedError("no room in the commit log");
  --entries_left_;
  std::copy(private_data.begin(), private_data.end(),
            shards_->arena().private_data(connection.index_));
  CommitEntry entry = {};
  entry.kind = kind;
  entry.connection = connection.index_;
  entry.generation = connection.generation_;
  entry.target_shard = shard;
  entry.private_data_length = static_cast<uint32_t>(private_data.size());
  staged_->entries.push_back(entry);
  staged_->moves |= kind == static_cast<uint8_t>(CommitKind::kAccept) && shard != index_;
  return absl::OkStatus();
}

absl::Status Shard::Accept(Connection& connection, std::string_view private_data) {
  return Accept(connection, *this, private_data);
}

absl::Status Shard::Accept(Connection& connection, Shard& shard, std::string_view private_data) {
  if (!shards_->Owns(shard)) return Invalid("shard: ", shard.index_, " is not ours");
  return StageDecision(connection, static_cast<uint8_t>(CommitKind::kAccept), shard.index_,
                       private_data);
}

absl::Status Shard::Reject(Connection& connection, std::string_view private_data) {
  return StageDecision(connection, static_cast<uint8_t>(CommitKind::kReject), index_, private_data);
}

absl::Status Shard::Disconnect(Connection& connection) {
  return StageDecision(connection, static_cast<uint8_t>(CommitKind::kDisconnect), index_, {});
}

absl::Status Shard::Commit() {
  if (epoch_ == 0) {
    Abandon();
    return absl::AbortedError(absl::StrCat("shard ", index_, " is not ours any more"));
  }
  if (NothingStaged() && delivered_ == acknowledged_) {
    if (staged_->more.totals) [[unlikely]]
      TellHeap();
    return absl::OkStatus();
  }
  // Everything that was staged has its room, but for the shard's state alone.
  const bool has_room = !staged_->entries.empty() || !staged_->shared.empty() ||
                        (heap_ != nullptr && heap_->HasStaged());
  if (!has_room && EntryRoom() == 0) {
    return absl::ResourceExhaustedError("no room in the commit log");
  }
  Publish(/*release=*/false);
  return absl::OkStatus();
}

bool Shard::NothingStaged() const {
  return staged_->entries.empty() && staged_->shared.empty() && !staged_->more.staged;
}

void Shard::AddSharedReceives() {
  const std::vector<uint16_t>& slots = staged_->shared;
  for (size_t i = 0; i < slots.size(); i += arena::kSharedReceivesPerEntry) {
    arena::SharedReceivesEntry entry = {};
    entry.kind = static_cast<uint8_t>(CommitKind::kSharedReceives);
    entry.count =
        static_cast<uint16_t>(std::min<size_t>(slots.size() - i, arena::kSharedReceivesPerEntry));
    std::copy_n(slots.begin() + static_cast<ptrdiff_t>(i), entry.count, entry.slots);
    staged_->entries.push_back(std::bit_cast<CommitEntry>(entry));
  }
}

// Acknowledges in the first connection's entry, if there is one and the layout's version allows it,
// otherwise in an entry of its own.
void Shard::Acknowledge() {
  CommitEntry* acknowledge;
  if (!staged_->connections.empty() && shards_->layout_version() >= 2) {
    acknowledge = &staged_->entries[staged_->connections.front()->entry_ - 1];
    acknowledge->flags |= arena::kCommitAcknowledges;
  } else {
    acknowledge = &staged_->entries.emplace_back();
    acknowledge->kind = static_cast<uint8_t>(CommitKind::kAcknowledge);
  }
  acknowledge->acknowledged = delivered_;
}

void Shard::AddStateAndHeap() {
  if (staged_->has_state) staged_->entries.push_back(staged_->state);
  if (heap_ != nullptr) heap_->AddEntries(&staged_->entries);
}

void Shard::NoteStateAndHeap() {
  if (staged_->has_state) {
    state_slot_ = staged_->state.state_slot;
    state_length_ = staged_->state.state_length;
    state_version_ = staged_->state.state_version;
  }
  if (heap_ == nullptr) return;
  // It stores hints in the bank, which may be another owner's after a release.
  if (heap_->HasStaged() || heap_->has_untold()) heap_->NoteCommitted();
}

// Tells the heap's totals without a transaction.
[[gnu::noinline]] void Shard::TellHeap() {
  NoteStateAndHeap();
  staged_->more = {};
}

// Writes the entries behind the tail, then the tail: that one store is the transaction.
void Shard::Publish(bool release) {
  BATON_CRASH_POINT("commit-begin");
  for (Connection* connection : staged_->connections) {
    CommitEntry& entry = staged_->entries[connection->entry_ - 1];
    entry.send_end = connection->send_staged_;
    if (entry.send_end != connection->send_committed_) shards_->NoteSendsCommitted();
    entry.receive_end = connection->receive_staged_;
  }
  if (!staged_->shared.empty()) AddSharedReceives();
  std::vector<CommitEntry>& entries = staged_->entries;
  if (staged_->more.any()) AddStateAndHeap();
  if (delivered_ != acknowledged_ || entries.empty()) {
    Acknowledge();
  }
  if (release) {
    entries.emplace_back().kind = static_cast<uint8_t>(CommitKind::kRelease);
  }
  entries.back().flags |= arena::kCommitLast;
  for (const CommitEntry& entry : entries) {
    bank_entries_[commit_tail_++ & (arena::kCommitLogEntries - 1)] = entry;
    BATON_CRASH_POINT("commit-entry-written");
  }
  NoteAcknowledged();  // the driver may write over these completions as soon as it is told
  if (staged_->more.any()) NoteStateAndHeap();
  BATON_CRASH_POINT("commit-before-publish");
  arena::StoreRelease(bank_->tail, arena::PackCursor(epoch_, commit_tail_));
  BATON_CRASH_POINT("commit-published");
  shards_->TellDriver(*this, release);
  BATON_CRASH_POINT("commit-driver-woken");
  for (Connection* connection : staged_->connections) {
    const CommitEntry& entry = entries[connection->entry_ - 1];
    connection->send_committed_ = connection->send_staged_;
    connection->receive_committed_ = connection->receive_staged_;
    if (entry.state_slot != arena::kKeepState) {
      connection->state_slot_ = entry.state_slot;
      connection->state_length_ = entry.state_length;
      connection->state_version_ = entry.state_version;
    }
    connection->entry_ = 0;
  }
  if (staged_->moves) [[unlikely]]
    ForgetMoved();
  ClearStaged();
}

bool Shard::MovesInto(const Shard& shard) const {
  return staged_->moves && std::any_of(staged_->entries.begin(), staged_->entries.end(),
                                       [&](const CommitEntry& entry) {
                                         return CommitKind(entry.kind) == CommitKind::kAccept &&
                                                entry.target_shard == shard.index_;
                                       });
}

// A connection accepted into another shard goes on there, with its kEstablished.
void Shard::ForgetMoved() {
  for (const CommitEntry& entry : staged_->entries) {
    if (CommitKind(entry.kind) != CommitKind::kAccept || entry.target_shard == index_) continue;
    if (Connection* moved = shards_->Resolve(*this, entry.connection, entry.generation)) {
      moved->known_epoch_ = 0;
      moved->moved_epoch_ = epoch_;
    }
  }
}

void Shard::ClearStaged() {
  staged_->entries.clear();
  staged_->connections.clear();
  staged_->shared.clear();
  staged_->has_state = false;
  staged_->more = {};
  staged_->moves = false;
  staged_->requests = 0;
  entries_left_ = 0;
}

// Log entries of acknowledged completions may be used again.
void Shard::NoteAcknowledged() {
  acknowledged_ = delivered_;
  for (Connection* connection : unacknowledged_) {
    connection->send_acknowledged_ = connection->send_completed_;
    connection->receive_acknowledged_ = connection->receive_completed_;
  }
  shared_free_.insert(shared_free_.end(), shared_unacknowledged_.begin(),
                      shared_unacknowledged_.end());
  ForgetDelivered();
}

void Shard::ForgetDelivered() {
  for (Connection* connection : unacknowledged_) connection->unacknowledged_ = false;
  unacknowledged_.clear();
  shared_unacknowledged_.clear();
}

// Returns whether the library skipped all completions that are not acknowledged. An application
// that was given none has no reason to commit, so the library has to acknowledge them.
bool Shard::OnlySkipped() const {
  return handed_ <= acknowledged_ && delivered_ > acknowledged_ && NothingStaged();
}

void Shard::Abandon() {
  for (Connection* connection : staged_->connections) {
    connection->send_staged_ = connection->send_committed_;
    connection->receive_staged_ = connection->receive_committed_;
    connection->entry_ = 0;
  }
  shared_free_.insert(shared_free_.end(), staged_->shared.rbegin(), staged_->shared.rend());
  shared_outstanding_ -= static_cast<uint32_t>(staged_->shared.size());
  if (heap_ != nullptr) heap_->Abandon();
  ClearStaged();
  if (heap_ != nullptr && heap_->has_untold()) NoteHeapChange();
}

namespace {

// The driver has checked and posted a copy of its own. A former owner that misbehaved may have
// overwritten `request` since, so ranges outside of the buffers and of every region are left out.
template <typename Visit>
void VisitBuffers(const arena::WorkRequest& request, const arena::Arena& arena,
                  const Visit& visit) {
  for (uint32_t i = 0; i < std::min<uint32_t>(request.sge_count, arena::kMaxSges); ++i) {
    const arena::BufferRange& range = arena::RangeOf(request, i);
    const Buffer buffer = {range.offset, range.length};
    if (IsWithin(buffer, arena.shape().buffer_bytes) || arena.HasRegionWith(range)) visit(buffer);
  }
}

}  // namespace

void Shard::ForEachSharedBufferInUse(
    const std::function<void(const Buffer&, uint64_t tag)>& visit) const {
  const arena::Arena& arena = shards_->arena();
  std::vector<bool> free(arena::SharedReceiveSlots(arena.shape()));
  for (const uint16_t slot : shared_free_) free[slot] = true;
  for (uint32_t slot = 0; slot < free.size(); ++slot) {
    if (free[slot]) continue;
    const arena::WorkRequest request = arena::CopyOnce(arena.shared_receive_request(index_, slot));
    VisitBuffers(request, arena, [&](const Buffer& buffer) { visit(buffer, request.tag); });
  }
}

void Shard::ForEachBufferInUse(const Connection& connection,
                               const std::function<void(const Buffer&, bool send)>& visit) const {
  const arena::Arena& arena = shards_->arena();
  for (const bool send : {true, false}) {
    const uint64_t from = send ? connection.send_acknowledged_ : connection.receive_acknowledged_;
    const uint64_t staged = send ? connection.send_staged_ : connection.receive_staged_;
    const uint64_t log = 2 * uint64_t{send ? send_depth_ : receive_depth_};
    const uint64_t to = std::min(staged, from + log);
    for (uint64_t i = from; i < to; ++i) {
      const arena::WorkRequest request =
          arena::CopyOnce(send ? arena.send_request(connection.index_, i)
                               : arena.receive_request(connection.index_, i));
      VisitBuffers(request, arena, [&](const Buffer& buffer) { visit(buffer, send); });
    }
  }
}

// Visits the requests of other shards' connections, too: receives may have been posted here before
// the connection was accepted into another shard. The record of one that moves may not have these
// receives yet, so this worker's cursors count as well. The requests of a connection whose end this
// owner has handled, and not acknowledged, count as well: a successor is given its messages again.
void Shard::ForEachRangeInUse(absl::FunctionRef<void(uint64_t offset, uint64_t length)> visit) {
  const arena::Arena& arena = shards_->arena();
  const uint64_t buffer_bytes = arena.shape().buffer_bytes;
  const auto visit_within = [&](uint64_t offset, uint64_t length) {
    if (length <= buffer_bytes && offset <= buffer_bytes - length) visit(offset, length);
  };
  const auto visit_buffer = [&](const Buffer& buffer) {
    visit_within(buffer.offset, buffer.length);
  };
  const auto visit_requests = [&](const Connection& connection) {
    ForEachBufferInUse(connection,
                       [&](const Buffer& buffer, bool /*send*/) { visit_buffer(buffer); });
  };
  for (uint32_t i = 0; i < arena.shape().connections; ++i) {
    const arena::ConnectionRecord& record = arena.connection(i);
    const bool used =
        arena::LoadAcquire(record.state) != static_cast<uint32_t>(arena::ConnectionState::kFree);
    if (!used) continue;
    // One that moves is not loaded again: its shard may not have been changed yet.
    if (const Connection* const known = shards_->Known(*this, i, record.generation)) {
      visit_requests(*known);
      continue;
    }
    if (const Connection* const moving = shards_->Moving(*this, i, record)) visit_requests(*moving);
    Connection others;
    shards_->LoadCursors(record, &others);
    others.index_ = i;
    visit_requests(others);
  }
  ForEachSharedBufferInUse([&](const Buffer& buffer, uint64_t) { visit_buffer(buffer); });
  // The one in doubt is read before the records: once it is in doubt no more, its record is there.
  visit_within(shards_->in_doubt().offset(), shards_->in_doubt().length());
  for (uint32_t i = 0; i < arena::kGrants; ++i) {
    const arena::GrantRecord grant = arena::CopyOnce(arena.grant(i));
    visit_within(grant.offset, grant.length);
  }
}

std::vector<Connection*> Shard::connections() {
  std::vector<Connection*> found;
  const arena::Arena& arena = shards_->arena();
  for (uint32_t i = 0; i < arena.shape().connections; ++i) {
    const arena::ConnectionRecord& record = arena.connection(i);
    const auto state = arena::ConnectionState(arena::LoadAcquire(record.state));
    if (state == arena::ConnectionState::kFree || record.shard != index_) continue;
    if (shards_->HasMoved(*this, i, record.generation)) continue;
    // No worker is told the end of such a connection.
    if (state == arena::ConnectionState::kClosed &&
        record.poison == static_cast<uint32_t>(arena::PoisonLevel::kVoid)) {
      continue;
    }
    if (Connection* connection = shards_->Resolve(*this, i, record.generation)) {
      found.push_back(connection);
    }
  }
  return found;
}

}  // namespace baton
