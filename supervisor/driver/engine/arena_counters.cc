#include "supervisor/driver/engine/arena_counters.h"

#include <algorithm>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"

namespace baton::driver_process {
namespace {

uint64_t Grow(uint64_t& seen, uint64_t now) {
  const uint64_t before = std::exchange(seen, std::max(seen, now));
  return seen - before;
}

}  // namespace

ArenaCounters::ArenaCounters(const arena::Arena* arena)
    : arena_(arena),
      shares_receives_(arena::HasSharedReceives(arena->shape())),
      seen_(SharedArray<Seen>::Make(arena->shape().connections).value()),
      totals_(SharedArray<Total>::Make(arena->shape().shards).value()) {}

absl::Status ArenaCounters::SetInherited(bool inherited) {
  BATON_RETURN_IF_ERROR(seen_.SetInherited(inherited));
  return totals_.SetInherited(inherited);
}

void ArenaCounters::Look(uint32_t index) {
  const arena::ConnectionRecord& connection = arena_->connection(index);
  const uint32_t shard = arena::LoadAcquire(connection.shard);
  if (shard >= totals_.size()) return;
  Seen& seen = seen_[index];
  const uint32_t generation = arena::LoadRelaxed(connection.generation);
  if (seen.generation != generation) seen = {.generation = generation};
  const uint64_t& receives =
      shares_receives_ ? connection.receive.completed : connection.receive.posted;
  totals_[shard].sends += Grow(seen.sends, arena::LoadRelaxed(connection.send.posted));
  totals_[shard].receives += Grow(seen.receives, arena::LoadRelaxed(receives));
  totals_[shard].bytes_received +=
      Grow(seen.bytes_received, arena::LoadRelaxed(connection.bytes_received));
}

driver::ShardCounters ArenaCounters::Of(uint32_t shard) {
  for (uint32_t i = 0; i < seen_.size(); ++i) Look(i);
  driver::ShardCounters counters;
  counters.transactions = arena::LoadRelaxed(arena_->shard(shard).transactions);
  counters.sends_posted = counters.sends_committed = counters.sends_completed =
      totals_[shard].sends;
  counters.receives_posted = counters.receives_committed = counters.receives_completed =
      totals_[shard].receives;
  (void)Grow(totals_[shard].bytes_sent, arena::LoadRelaxed(arena_->shard(shard).bytes_sent));
  counters.bytes_sent = totals_[shard].bytes_sent;
  counters.bytes_received = totals_[shard].bytes_received;
  for (uint32_t i = 0; i < seen_.size(); ++i) {
    const arena::ConnectionRecord& connection = arena_->connection(i);
    if (arena::LoadAcquire(connection.shard) != shard || !driver::IsLive(connection)) continue;
    const arena::QueueCursors send = connection.send, receive = connection.receive;
    counters.sends_committed += send.committed - send.posted;
    counters.sends_completed -= send.posted - send.completed;
    if (shares_receives_) continue;
    counters.receives_committed += receive.committed - receive.posted;
    counters.receives_completed -= receive.posted - receive.completed;
  }
  if (shares_receives_) AddSharedReceives(shard, &counters);
  return counters;
}

// A driver takes a completed receive off the shared queue before its connection counts it.
void ArenaCounters::AddSharedReceives(uint32_t shard, driver::ShardCounters* counters) {
  const arena::ShardRecord& record = arena_->shard(shard);
  uint64_t& most = totals_[shard].shared_receives_posted;
  most = std::max(most,
                  counters->receives_completed + arena::LoadRelaxed(record.shared_receives_posted));
  counters->receives_posted = most;
  counters->receives_committed = most + arena::LoadRelaxed(record.shared_receives_unsure);
}

}  // namespace baton::driver_process
