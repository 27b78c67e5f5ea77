#include "tests/fuzz/brokered_service.h"

#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "tests/fuzz/clear_arena.h"

namespace baton::fuzz {

using arena::ConnectionRecord;
using arena::ConnectionState;
using arena::QueueCursors;
using arena::ShardRecord;
using driver::CommitOutcome;

BrokeredService::BrokeredService(arena::Arena* arena) : arena_(arena) {
  ClearArena(arena);
  local_ = native::LocalDriver::Create(arena, &device_, this).value();
  driver_ = &local_->driver();
  for (uint32_t shard = 0; shard < shards(); ++shard) ownership_.emplace_back(arena, shard);
  epochs_.resize(shards());
  before_.resize(driver_bytes());
}

BrokeredService::~BrokeredService() { device_.meanwhile = nullptr; }

CommitOutcome BrokeredService::Apply(uint32_t shard) {
  absl::Status error;
  // Mostly there is nothing, and the copy is most of the time that all this takes.
  if (driver_->PendingEntries(shard) == 0) return driver_->ApplyNext(shard, &error);
  std::memcpy(before_.data(), driver_memory(), before_.size());
  const uint64_t posts = device_.posts();
  const CommitOutcome outcome = driver_->ApplyNext(shard, &error);
  if (outcome == CommitOutcome::kIdle || outcome == CommitOutcome::kInvalid) {
    BATON_CHECK(std::memcmp(before_.data(), driver_memory(), before_.size()) == 0);
    BATON_CHECK(posts == device_.posts());
    BATON_CHECK((outcome == CommitOutcome::kInvalid) == !error.ok());
  } else {
    CheckOthers(shard);
  }
  return outcome;
}

// A transaction changes nothing of another owner's shards and connections.
void BrokeredService::CheckOthers(uint32_t shard) {
  const uint32_t owner = ownership_[shard].owner_slot();
  for (uint32_t other = 0; other < shards(); ++other) {
    if (ownership_[other].owner_slot() == owner) continue;
    const ShardRecord& now = arena_->shard(other);
    BATON_CHECK(std::memcmp(Before(&now), &now, sizeof(now)) == 0);
    const size_t heap_bytes = arena_->driver_map().heap_bytes;
    if (heap_bytes == 0) continue;
    const arena::HeapBlock* const heap = arena_->heap(other);
    BATON_CHECK(std::memcmp(Before(heap), heap, heap_bytes) == 0);
  }
  for (uint32_t i = 0; i < connections(); ++i) {
    const ConnectionRecord& now = record(i);
    ConnectionRecord before;
    std::memcpy(&before, Before(&now), sizeof(before));
    if (before.shard == shard || before.state == static_cast<uint32_t>(ConnectionState::kFree)) {
      continue;
    }
    BATON_CHECK(std::memcmp(&before, &now, sizeof(now)) == 0);
  }
}

void BrokeredService::HandleEvents() {
  local_->TurnManager();
  uint32_t shard = 0;
  while (local_->HandleNotice(&shard)) {
  }
}

void BrokeredService::Poll() {
  for (uint32_t shard = 0; shard < shards(); ++shard) {
    BATON_CHECK(driver_->PollCompletions(shard).ok());
  }
}

void BrokeredService::EndOwnership(uint32_t shard, bool released) {
  for (uint32_t i = 0; !released && i < arena::kCommitLogEntries; ++i) {
    const CommitOutcome outcome = Apply(shard);
    released = outcome == CommitOutcome::kReleased;
    if (outcome != CommitOutcome::kApplied) break;
  }
  ownership_[shard].End(released);
}

bool BrokeredService::GiveShard(uint32_t shard, uint32_t slot, uint64_t worker_id) {
  if (ownership_[shard].owned() || !ownership_[shard].CanGive()) return false;
  ownership_[shard].GiveTo(slot, worker_id);
  BATON_CHECK(ownership_[shard].epoch() > epochs_[shard]);
  epochs_[shard] = ownership_[shard].epoch();
  return true;
}

void BrokeredService::Check() {
  const arena::Shape& shape = arena_->shape();
  std::vector<uint32_t> members(shards());
  uint32_t live = 0;
  for (uint32_t i = 0; i < connections(); ++i) {
    const ConnectionRecord& connection = record(i);
    BATON_CHECK(connection.state <= static_cast<uint32_t>(ConnectionState::kClosed));
    BATON_CHECK(connection.shard < shards() && connection.state_slot <= 1);
    BATON_CHECK(connection.state_length <= shape.connection_state_bytes);
    BATON_CHECK(connection.private_data_length <= arena::kPrivateDataBytes);
    if (connection.state == static_cast<uint32_t>(ConnectionState::kFree)) continue;
    ++live;
    ++members[connection.shard];
    for (const bool send : {true, false}) {
      const QueueCursors& cursors = send ? connection.send : connection.receive;
      const uint32_t depth = send ? shape.send_queue_depth : shape.receive_queue_depth;
      BATON_CHECK(cursors.acknowledged <= cursors.completed);
      BATON_CHECK(cursors.completed <= cursors.posted && cursors.posted <= cursors.committed);
      BATON_CHECK(cursors.committed - cursors.completed <= depth);
      BATON_CHECK(cursors.committed - cursors.acknowledged <= 2 * uint64_t{depth});
      if (connection.state == static_cast<uint32_t>(ConnectionState::kClosed)) {
        BATON_CHECK(cursors.posted == cursors.completed);
      }
    }
  }
  BATON_CHECK(live == driver_->connection_count());
  for (uint32_t shard = 0; shard < shards(); ++shard) {
    const ShardRecord& now = arena_->shard(shard);
    BATON_CHECK(now.connections == members[shard] && now.state_slot <= 1);
    BATON_CHECK(now.state_length <= shape.shard_state_bytes);
    BATON_CHECK(now.acknowledged <= now.completion_tail);
    BATON_CHECK(now.completion_tail - now.acknowledged < shape.completion_log_entries);
    BATON_CHECK(ownership_[shard].epoch() >= epochs_[shard]);
    for (uint32_t page = 0; page < shape.heap_pages; ++page) {
      BATON_CHECK(arena::IsHeapBlock(arena_->heap(shard)[page], page, shape.heap_pages));
    }
    const driver::ShardCounters& counters = driver_->counters(shard);
    BATON_CHECK(counters.sends_completed <= counters.sends_posted);
    BATON_CHECK(counters.sends_posted <= counters.sends_committed);
    BATON_CHECK(counters.receives_completed <= counters.receives_posted);
    BATON_CHECK(counters.receives_posted <= counters.receives_committed);
  }
}

namespace {

using arena::CompletionEntry;
using arena::CompletionKind;
using driver::CommitOutcome;

constexpr uint32_t kBufferBytes = 64;
constexpr uint32_t kWindow = 2;  // receives that are posted

WorkerOptions Options() {
  WorkerOptions options;
  options.service = "attacked";
  options.control_stream = false;
  return options;
}

// Every byte is there to be read.
void Read(absl::Span<const uint8_t> bytes) {
  volatile uint32_t sum = std::accumulate(bytes.begin(), bytes.end(), 0u);
  (void)sum;
}

}  // namespace

HonestWorker::HonestWorker(arena::Arena* arena, MemoryDevice* device, uint64_t epoch,
                           uint32_t connections)
    : arena_(arena), device_(device), writer_(arena, 0), peers_(connections) {
  writer_.Begin(epoch);
  for (uint32_t i = 0; i < connections; ++i) device->RequestConnection("honest");
}

uint64_t HonestWorker::Buffer(uint32_t connection, uint64_t sequence) const {
  const uint64_t slots = 2 * arena_->shape().receive_queue_depth;
  return (connection * slots + sequence % slots) * kBufferBytes;
}

void HonestWorker::PeersTurn() {
  for (MemoryConnection* connection : device_->connections()) connection->Establish();
  const std::vector<MemoryQueuePair*>& queue_pairs = device_->queue_pairs();
  for (size_t i = 0; i < queue_pairs.size(); ++i) {
    Peer& peer = peers_[i];
    const std::string message = absl::StrCat("peer ", i, " message ", peer.sent);
    if (queue_pairs[i]->Deliver(message)) {
      ++peer.sent;
      peer.expected.push_back(message);
    }
    std::string reply;
    if (queue_pairs[i]->CompleteSend(verbs::CompletionStatus::kSuccess, &reply)) {
      BATON_CHECK(!peer.expected.empty() && reply == peer.expected.front());
      peer.expected.pop_front();
      ++echoes_;
    }
    BATON_CHECK(peer.expected.size() <= 4 * kWindow);  // nothing is lost on the way
  }
}

void HonestWorker::WorkerTurn() {
  // The writer takes the driver's cursors for what is committed: all of it has to be applied.
  const uint64_t head = arena::LoadAcquire(arena_->shard(0).commit_head);
  if (arena::CursorIndex(head) != writer_.tail()) return;
  const uint64_t tail = arena::LoadAcquire(arena_->shard(0).completion_tail);
  if (read_ == tail) return;
  for (; read_ < tail; ++read_) {
    const CompletionEntry& done = arena_->completion(0, read_);
    const uint64_t posted = arena_->connection(done.connection).receive.committed;
    switch (CompletionKind(done.kind)) {
      case CompletionKind::kConnectRequest:
        for (uint32_t i = 0; i < kWindow; ++i) {
          writer_.Receive(done.connection, Buffer(done.connection, posted + i), kBufferBytes);
        }
        writer_.Accept(done.connection, 0);
        break;
      case CompletionKind::kReceive:
        BATON_CHECK(done.status == 0 && done.byte_len > 0);
        writer_.Send(done.connection, Buffer(done.connection, done.sequence), done.byte_len);
        break;
      case CompletionKind::kSend:
        // The receive whose buffer it was: the same sequence, for each message has one reply.
        BATON_CHECK(done.status == 0);
        writer_.Receive(done.connection, Buffer(done.connection, done.sequence + kWindow),
                        kBufferBytes);
        break;
      default:
        BATON_CHECK(CompletionKind(done.kind) == CompletionKind::kEstablished);
    }
  }
  writer_.Acknowledge(read_);
  writer_.Publish();
}

void HonestWorker::Turn(BrokeredService* service) {
  PeersTurn();
  service->HandleEvents();
  service->Poll();
  WorkerTurn();
  while (service->driver().PendingEntries(0) > 0) {
    BATON_CHECK(service->Apply(0) == CommitOutcome::kApplied);
  }
}

HonestHeir::HonestHeir(const arena::Arena* arena, FileDescriptor wake, uint64_t id, uint32_t slot)
    : worker_(Options(), this) {
  int pair[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  keeper_.Reset(pair[0]);
  worker_.Connected(FileDescriptor(pair[1]));
  const std::shared_ptr<const arena::Arena> shared(std::shared_ptr<void>(), arena);
  BATON_CHECK(worker_.Start(shared, std::move(wake), id, slot).ok());
}

HonestHeir::~HonestHeir() { worker_.Die(); }

void HonestHeir::Turn() {
  (void)worker_.Poll();
  for (Shard* shard : std::vector<Shard*>(shards_)) {
    for (Connection* connection : shard->connections()) {
      Look(*shard, *connection);
      shard->Disconnect(*connection).IgnoreError();
    }
    shard->Commit().IgnoreError();
  }
}

absl::Status HonestHeir::OnAdopt(Shard& shard) {
  std::erase(shards_, &shard);
  shards_.push_back(&shard);
  Read(shard.state());
  for (Connection* connection : shard.connections()) Look(shard, *connection);
  return absl::OkStatus();
}

void HonestHeir::OnCompletion(Shard& shard, const Completion& completion) {
  BATON_CHECK(completion.connection != nullptr);
  Look(shard, *completion.connection);
  if (completion.kind != Completion::Kind::kConnectRequest) return;
  shard.Reject(*completion.connection, "not now").IgnoreError();
}

void HonestHeir::OnLost(Shard& shard) { std::erase(shards_, &shard); }

void HonestHeir::Look(Shard& shard, Connection& connection) {
  Read(connection.state());
  BATON_CHECK(connection.private_data().size() <= arena::kPrivateDataBytes);
  const uint64_t total = worker_.buffers().size();
  uint64_t in_use = 0;
  shard.ForEachBufferInUse(connection, [&](const Buffer& buffer, bool) {
    BATON_CHECK(buffer.offset <= total && buffer.length <= total - buffer.offset);
    ++in_use;
  });
  const Capacity& capacity = worker_.capacity();
  BATON_CHECK(in_use <= 2 * arena::kMaxSges *
                            (uint64_t{capacity.send_queue_depth} + capacity.receive_queue_depth));
}

}  // namespace baton::fuzz
