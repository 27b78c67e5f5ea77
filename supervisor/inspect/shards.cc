#include <string>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/status.h"
#include "supervisor/inspect/descriptions.h"

namespace baton::inspect {
namespace {

absl::Status DescribeRing(const ArenaView& arena, uint64_t at, uint64_t entries, const char* name,
                          v1::InspectedRing* out, Problems* problems) {
  BATON_ASSIGN_OR_RETURN(const auto look, arena.files.recovery().ReadStill<arena::MailCursors>(at));
  out->set_told(look.value.tail);
  out->set_done(look.value.head);
  if (!look.changing && look.value.tail - look.value.head > entries) {
    problems->Add(absl::StrCat(name, ": ", look.value.head, " done of ", look.value.tail));
  }
  return absl::OkStatus();
}

absl::Status CountPool(const ArenaView& arena, uint32_t shard, v1::InspectedShard* out) {
  std::vector<arena::PooledQueuePair> pool(arena.header.shape.pooled_queue_pairs);
  BATON_RETURN_IF_ERROR(arena.files.recovery().Read(arena.recovery_map.Pool(shard), pool.data(),
                                                    pool.size() * sizeof(pool[0])));
  uint32_t counts[4] = {};
  for (const arena::PooledQueuePair& one : pool) {
    if (one.state < 4) {
      ++counts[one.state];
    } else {
      out->add_invalid(absl::StrCat("queue pair ", one.number, ": ", InvalidName(one.state)));
    }
  }
  const auto count = [&](arena::PooledState state) { return counts[static_cast<int>(state)]; };
  out->mutable_pool()->set_free(count(arena::PooledState::kFree));
  out->mutable_pool()->set_taken(count(arena::PooledState::kTaken));
  out->mutable_pool()->set_spent(count(arena::PooledState::kSpent));
  out->mutable_pool()->set_lent(count(arena::PooledState::kLent));
  return absl::OkStatus();
}

// Adds the parts that only a native service has. `whole`: includes the long ones.
absl::Status DescribeNativeShard(const ArenaView& arena, uint32_t shard, bool whole,
                                 v1::InspectedShard* out) {
  BATON_ASSIGN_OR_RETURN(const auto look, arena.files.recovery().ReadStill<arena::SuccessionRecord>(
                                              arena.recovery_map.SuccessionOf(shard)));
  const uint64_t heir = look.value.heir;
  if (heir > arena.header.shape.workers) {
    out->add_invalid(absl::StrCat("heir: worker slot ", heir - 1));
  } else if (heir != 0) {
    out->set_heir_slot(static_cast<int32_t>(heir) - 1);
  }
  if (!whole) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(DescribeRing(arena, arena.recovery_map.Notices(shard), arena::kNotices,
                                     "notices", out->mutable_notices(), out->mutable_invalid()));
  BATON_RETURN_IF_ERROR(DescribeRing(arena, arena.recovery_map.Orders(shard),
                                     arena::OrdersOf(arena.header.shape), "orders",
                                     out->mutable_orders(), out->mutable_invalid()));
  return CountPool(arena, shard, out);
}
using arena::ShardRecord;

constexpr int32_t kNone = -1;
// The bits of a robust lock's word (futex(2)).
constexpr uint32_t kThreadMask = 0x3fffffff;
constexpr uint32_t kOwnerDied = 0x40000000;

void DescribeOwner(const ArenaView& arena, const arena::OwnershipRecord& owner,
                   v1::InspectedShard* out) {
  const uint32_t word_slot = arena::OwnershipSlot(owner.ownership);
  const uint32_t slot = arena::ClaimantOrOwner(word_slot);
  out->set_epoch(arena::OwnershipEpoch(owner.ownership));
  out->set_owner_slot(slot == arena::kNobody ? kNone : static_cast<int32_t>(slot));
  out->set_claimed(arena::IsClaim(word_slot));
  if (slot != arena::kNobody && slot >= arena.header.shape.workers) {
    out->add_invalid(absl::StrCat("owner: worker slot ", slot, " of ", arena.header.shape.workers));
  }
  if (slot != arena::kNobody && !out->claimed()) out->set_owner_worker_id(owner.owner_worker_id);
  out->set_heir_worker_id(owner.heir_worker_id);
  out->set_heir_slot(kNone);
  out->set_release_requested(owner.release_requested);
  out->set_cut_epoch(owner.cut_epoch);
  out->set_cut_tail(owner.cut_tail);
  if (owner.cut_epoch > out->epoch()) {
    out->add_invalid(absl::StrCat("cut: of epoch ", owner.cut_epoch, ", which has not begun"));
  }
}

// Describes the owner's hint, which counts only if it is possible (layout.md, "Poison").
void DescribeHandling(const ShardRecord& record, const arena::BankHeader& bank,
                      v1::InspectedShard* out) {
  out->set_read_cursor(bank.read_cursor);
  if (bank.handling == arena::kHandlingNotTold || bank.handling == 0) return;
  const uint64_t completion = bank.handling - 1;
  if (completion >= record.acknowledged && completion < record.completion_tail) {
    out->set_handling(completion);
  }
}

// Checks the owner's `tail`, which was read after the driver's `before` and before its `after`.
// Returns the problem; empty: it is possible.
std::string EntriesProblem(const ShardRecord& before, uint64_t tail, const ShardRecord& after,
                           uint64_t epoch) {
  if (!arena::CursorIsOf(tail, epoch)) {
    return absl::StrCat("its tail is of another epoch than ", epoch);
  }
  const uint64_t applied = arena::CursorIndex(before.commit_head);
  const uint64_t applied_since = arena::CursorIndex(after.commit_head);
  const uint64_t published = arena::CursorIndex(tail);
  const bool too_many =
      published > applied_since && published - applied_since > arena::kCommitLogEntries;
  if (published >= applied && !too_many) return "";
  return absl::StrCat(applied, " entries applied of ", published, " published");
}

// In a file the owner's tail may be much later than the driver's record, and not fit it any more.
void DescribeEntries(const ArenaView& arena, const ShardRecord& before, uint64_t tail,
                     const ShardRecord& after, v1::InspectedShard* out) {
  out->set_entries_applied(arena::CursorIndex(before.commit_head));
  if (arena::CursorIsOf(tail, out->epoch())) out->set_entries_published(arena::CursorIndex(tail));
  const std::string problem = EntriesProblem(before, tail, after, out->epoch());
  if (problem.empty()) return;
  if (arena.files.file.empty()) {
    out->add_invalid(absl::StrCat("commit log: ", problem));
  } else {
    out->set_changing(true);
  }
}

absl::Status DescribeCommitLog(const ArenaView& arena, uint32_t shard, const ShardRecord& record,
                               v1::InspectedShard* out) {
  // The epoch's driver has not begun.
  if (!arena::CursorIsOf(record.commit_head, out->epoch())) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const auto bank, arena.files.worker_log().ReadStill<arena::BankHeader>(
                                              arena.worker_map.Bank(shard, out->epoch())));
  BATON_ASSIGN_OR_RETURN(const auto after, arena.files.driver_log().ReadStill<ShardRecord>(
                                               arena.driver_map.Shard(shard)));
  if (!arena::CursorIsOf(after.value.commit_head, out->epoch())) {
    out->set_changing(true);
    return absl::OkStatus();
  }
  DescribeEntries(arena, record, bank.value.tail, after.value, out);
  out->set_transaction_begun(arena.layout_version >= 2 && out->epoch() != 0 &&
                             record.apply_begun == record.commit_head);
  DescribeHandling(after.value, bank.value, out);
  return absl::OkStatus();
}

void DescribeCompletionLog(const ArenaView& arena, const ShardRecord& record,
                           v1::InspectedShard* out) {
  out->set_completions(record.completion_tail);
  out->set_acknowledged(record.acknowledged);
  if (out->changing()) return;
  if (record.acknowledged > record.completion_tail ||
      record.completion_tail - record.acknowledged > arena.header.shape.completion_log_entries) {
    out->add_invalid(absl::StrCat("completion log: ", record.acknowledged, " acknowledged of ",
                                  record.completion_tail));
  }
}

absl::Status DescribeShard(const ArenaView& arena, uint32_t shard, v1::InspectedShard* out) {
  BATON_ASSIGN_OR_RETURN(const auto look, arena.files.driver_log().ReadStill<ShardRecord>(
                                              arena.driver_map.Shard(shard)));
  const ShardRecord& record = look.value;
  out->set_index(shard);
  out->set_changing(look.changing);
  DescribeOwner(arena, record.owner, out);
  DescribeCompletionLog(arena, record, out);
  BATON_RETURN_IF_ERROR(DescribeCommitLog(arena, shard, record, out));
  out->set_connections(record.connections);
  if (record.connections > arena.header.shape.connections) {
    out->add_invalid(
        absl::StrCat("connections: ", record.connections, " of ", arena.header.shape.connections));
  }
  out->set_transactions(record.transactions);
  DescribeStateCursor(arena, {true, shard, CursorOf(record)}, out->mutable_state(),
                      out->mutable_invalid());
  out->set_shared_receives_posted(record.shared_receives_posted);
  out->set_shared_receives_unsure(record.shared_receives_unsure);
  out->set_shared_receives_refused(record.shared_receives_refused != 0);
  return absl::OkStatus();
}

absl::Status DescribeContent(const ArenaView& arena, const Selection& selection,
                             v1::InspectedShard* shard, uint64_t* left_out) {
  if (selection.work_requests && arena::HasSharedReceives(arena.header.shape)) {
    Room room = {uint64_t{selection.limit} * kRequestsPerConnection};
    BATON_RETURN_IF_ERROR(
        DescribeSharedReceives(arena, shard->index(), &room, shard->mutable_shared_receives()));
    *left_out += room.left_out;
  }
  if (!selection.state) return absl::OkStatus();
  return DescribeStateBytes(
      arena,
      {true,
       shard->index(),
       {shard->state().slot(), shard->state().length(), shard->state().version()}},
      selection.decode, shard->mutable_state());
}

void AddTo(const v1::InspectedShard& shard, v1::InspectionTotals* totals) {
  if (shard.owner_slot() != kNone && !shard.claimed()) {
    totals->set_shards_owned(totals->shards_owned() + 1);
  }
  totals->set_connections(totals->connections() + shard.connections());
  totals->set_transactions(totals->transactions() + shard.transactions());
  totals->set_completions(totals->completions() + shard.completions());
  if (shard.acknowledged() > shard.completions()) return;
  totals->set_completions_unacknowledged(totals->completions_unacknowledged() +
                                         shard.completions() - shard.acknowledged());
}

bool IsUnused(const arena::WorkerSlot& slot) {
  for (const arena::ThreadLock& lock : slot.thread_locks) {
    if (lock.futex != 0) return false;
  }
  return slot.heartbeat == 0 && slot.unhealthy == 0;
}

void DescribeWorker(const arena::WorkerSlot& slot, v1::InspectedWorker* out) {
  out->set_heartbeat(slot.heartbeat);
  out->set_unhealthy(slot.unhealthy != 0);
  out->set_sleeping(slot.sleeping != 0);
  if (slot.unhealthy > 1) out->add_invalid(absl::StrCat("unhealthy: ", slot.unhealthy));
  if (slot.sleeping > 1) out->add_invalid(absl::StrCat("sleeping: ", slot.sleeping));
  for (const arena::ThreadLock& lock : slot.thread_locks) {
    if ((lock.futex & kOwnerDied) != 0) {
      out->set_dead_locks(out->dead_locks() + 1);
    } else if ((lock.futex & kThreadMask) != 0) {
      out->add_lock_holders(lock.futex & kThreadMask);
    }
  }
}

}  // namespace

absl::Status DescribeShards(const ArenaView& arena, const Selection& selection,
                            v1::Inspection* out) {
  uint64_t left_out = 0;
  for (uint32_t i = 0; i < arena.header.shape.shards; ++i) {
    v1::InspectedShard shard;
    BATON_RETURN_IF_ERROR(DescribeShard(arena, i, &shard));
    AddTo(shard, out->mutable_totals());
    const bool chosen = selection.shard ? *selection.shard == i : !selection.connection;
    if (!chosen) continue;
    if (arena.native() && arena.files.recovery().exists()) {
      BATON_RETURN_IF_ERROR(
          DescribeNativeShard(arena, i, /*whole=*/selection.shard.has_value(), &shard));
    }
    if (arena.header.shape.heap_pages != 0) {
      BATON_RETURN_IF_ERROR(DescribeHeap(arena, &shard));
    }
    BATON_RETURN_IF_ERROR(DescribeContent(arena, selection, &shard, &left_out));
    *out->add_shards() = std::move(shard);
  }
  out->set_work_requests_left_out(left_out);
  return absl::OkStatus();
}

absl::Status DescribeWorkers(const ArenaView& arena, v1::Inspection* out) {
  BATON_ASSIGN_OR_RETURN(const auto header,
                         arena.files.driver_log().Read<arena::DriverMemoryHeader>(0));
  for (uint32_t i = 0; i < arena.header.shape.workers; ++i) {
    BATON_ASSIGN_OR_RETURN(const auto look, arena.files.worker_log().ReadStill<arena::WorkerSlot>(
                                                arena.worker_map.Worker(i)));
    if (IsUnused(look.value)) continue;
    v1::InspectedWorker* const worker = out->add_workers();
    worker->set_slot(i);
    worker->set_stop_requested((header.stop_requested >> i & 1) != 0);
    DescribeWorker(look.value, worker);
  }
  return absl::OkStatus();
}

}  // namespace baton::inspect
