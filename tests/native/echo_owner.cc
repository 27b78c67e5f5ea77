#include "tests/native/echo_owner.h"

#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/native/message.h"

namespace baton::native {
namespace {

constexpr uint32_t kShard = 0;
constexpr uint32_t kSlot = 0;             // of the worker
constexpr uint64_t kMaxCompletions = 32;  // to a transaction

}  // namespace

EchoOwner::EchoOwner(arena::Arena* arena, driver::QueueDriver* driver, uint64_t worker_id)
    : arena_(arena),
      driver_(driver),
      worker_id_(worker_id),
      depth_(arena->shape().receive_queue_depth),
      ownership_(arena, kShard),
      writer_(arena, kShard),
      counts_(arena->shape().connections),
      send_ends_(arena->shape().connections) {}

uint64_t EchoOwner::ReceiveOffset(uint32_t connection, uint32_t depth, uint64_t sequence) {
  return (2 * connection * uint64_t{depth} + sequence % depth) * sizeof(Message);
}
uint64_t EchoOwner::SendOffset(uint32_t connection, uint32_t depth, uint64_t sequence) {
  return ReceiveOffset(connection, depth, sequence) + depth * sizeof(Message);
}

// What the dead has published is applied first: it was committed.
absl::Status EchoOwner::Adopt() {
  if (ownership_.owned()) {
    absl::Status error;
    for (;;) {
      const driver::CommitOutcome outcome = driver_->ApplyNext(kShard, &error);
      if (outcome == driver::CommitOutcome::kIdle) break;
      if (outcome != driver::CommitOutcome::kApplied) return error;
    }
    const uint64_t former = ownership_.owner_id();
    ownership_.End(/*released=*/false);
    ownership_.ProveDead(former);
  }
  ownership_.Grant(kSlot, worker_id_);
  writer_.Begin(ownership_.epoch());
  return absl::OkStatus();
}

void EchoOwner::Accept(uint32_t connection) {
  for (uint32_t i = 0; i < depth_; ++i) {
    writer_.Receive(connection, ReceiveOffset(connection, depth_, i), sizeof(Message));
  }
  writer_.Accept(connection, kShard);
}

uint64_t EchoOwner::CommittedCount(uint32_t connection) const {
  const arena::ConnectionRecord& record = arena_->connection(connection);
  if (record.state_length == 0) return 0;
  uint64_t count = 0;
  std::memcpy(&count, arena_->connection_state(connection, record.state_slot), sizeof(count));
  return count;
}

absl::StatusOr<bool> EchoOwner::Turn() {
  BATON_RETURN_IF_ERROR(driver_->PollCompletions(kShard).status());
  const arena::ShardRecord& shard = arena_->shard(kShard);
  for (uint32_t i = 0; i < counts_.size(); ++i) {
    counts_[i] = CommittedCount(i);
    send_ends_[i] = arena_->connection(i).send.committed;
  }
  uint32_t answered = 0, last = 0;
  uint64_t next = shard.acknowledged;
  for (; next < shard.completion_tail && next < shard.acknowledged + kMaxCompletions; ++next) {
    const arena::CompletionEntry& entry = arena_->completion(kShard, next);
    if (arena::CompletionKind(entry.kind) == arena::CompletionKind::kConnectRequest) {
      Accept(entry.connection);
    }
    if (arena::CompletionKind(entry.kind) != arena::CompletionKind::kReceive) continue;
    if (!Answer(entry)) break;
    last = entry.connection;
    ++answered;
  }
  if (next == shard.acknowledged) return false;
  answered > 0 ? writer_.AcknowledgeWith(last, next) : writer_.Acknowledge(next);
  BATON_RETURN_IF_ERROR(Commit());
  answered_ += answered;
  return true;
}

namespace {

// Puts the buffer where workers put it, and not only where those of layout version 1 do: a driver
// writes such requests to the device's queue by itself.
void UseFirstLine(arena::WorkRequest& request) {
  request.one_line = 1;
  request.only = request.sges[0];
}

}  // namespace

bool EchoOwner::Answer(const arena::CompletionEntry& entry) {
  const uint32_t connection = entry.connection;
  const arena::ConnectionRecord& record = arena_->connection(connection);
  if (send_ends_[connection] - record.send.completed >= depth_) return false;
  Message reply;
  std::memcpy(&reply, arena_->buffers() + ReceiveOffset(connection, depth_, entry.sequence),
              sizeof(reply));
  // One that is not whole is sent back as it is.
  if (reply.sum == SumOf(reply)) {
    reply.count = counts_[connection];
    reply.sum = SumOf(reply);
  }
  ++counts_[connection];
  const uint64_t offset = SendOffset(connection, depth_, send_ends_[connection]);
  std::memcpy(arena_->buffers() + offset, &reply, sizeof(reply));
  UseFirstLine(writer_.Send(connection, offset, sizeof(reply)));
  ++send_ends_[connection];
  UseFirstLine(writer_.Receive(connection, ReceiveOffset(connection, depth_, entry.sequence),
                               sizeof(Message)));
  writer_.ConnectionState(
      connection,
      std::string_view(reinterpret_cast<const char*>(&counts_[connection]), sizeof(uint64_t)), 1);
  return true;
}

absl::Status EchoOwner::Commit() {
  writer_.Publish();
  absl::Status error;
  const driver::CommitOutcome outcome = driver_->ApplyNext(kShard, &error);
  if (outcome == driver::CommitOutcome::kApplied) return absl::OkStatus();
  return error.ok() ? absl::InternalError(
                          absl::StrCat("the commit's outcome is ", static_cast<int>(outcome)))
                    : error;
}

}  // namespace baton::native
