#include "tests/fuzz/brokered_service.h"

#include <cstring>

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
  driver_ = driver::QueueDriver::Create(arena, &device_, this).value();
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
  uint32_t shard = 0;
  while (driver_->HandleEvent(&shard)) {
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
    const driver::ShardCounters& counters = driver_->counters(shard);
    BATON_CHECK(counters.sends_completed <= counters.sends_posted);
    BATON_CHECK(counters.sends_posted <= counters.sends_committed);
    BATON_CHECK(counters.receives_completed <= counters.receives_posted);
    BATON_CHECK(counters.receives_posted <= counters.receives_committed);
  }
}

}  // namespace baton::fuzz
