#include "lib/driver/ownership.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/base/crash_point.h"

namespace baton::driver {

// Skipping an epoch skips its bank.
uint64_t Ownership::NextEpoch() const {
  for (uint64_t next = epoch() + 1; next <= epoch() + arena::kCommitBanks; ++next) {
    if (writers_[next % arena::kCommitBanks] == 0) return next;
  }
  return 0;
}

bool Ownership::CanGrant() const { return NextEpoch() != 0; }

void Ownership::Grant(uint32_t worker_slot, uint64_t worker_id) {
  const uint64_t next = NextEpoch();
  BATON_CHECK(!owned() && next != 0);
  writers_[next % arena::kCommitBanks] = worker_id;
  PrepareEpoch(next, worker_id);
  BeginEpoch(next, worker_slot);
}

void Ownership::PrepareEpoch(uint64_t next, uint64_t worker_id) {
  arena::ShardRecord& shard = arena_->shard(shard_);
  arena::BankHeader& bank = arena_->bank(shard_, next);
  arena::StoreRelaxed(bank.tail, arena::PackCursor(next, 0));
  // Not what a former writer of the bank has left there: it would be blamed on this one's death.
  arena::StoreRelaxed(bank.read_cursor, shard.acknowledged);
  arena::StoreRelaxed(bank.handling, arena::kHandlingNotTold);
  shard.commit_head = arena::PackCursor(next, 0);
  shard.owner.owner_worker_id = worker_id;
  shard.owner.release_requested = 0;
}

// The one word that moves the shard: everything before is visible with it.
void Ownership::BeginEpoch(uint64_t next, uint32_t worker_slot) {
  arena::StoreRelease(record().ownership, WordOf(next, worker_slot));
  Announce();
}

// As stored, by who has the right to: the sequence is as it was.
uint64_t Ownership::WordOf(uint64_t epoch, uint32_t slot) const {
  return arena::PackOwnership(epoch, slot, arena::OwnershipSequence(record().ownership));
}

void Ownership::End(bool released) {
  BATON_CHECK(owned());
  arena::ShardRecord& shard = arena_->shard(shard_);
  shard.owner.cut_epoch = epoch();
  shard.owner.cut_tail = arena::CursorIndex(shard.commit_head);
  shard.owner.release_requested = 0;
  shard.owner.owner_worker_id = 0;
  if (released) writers_[epoch() % arena::kCommitBanks] = 0;
  arena::StoreRelease(shard.owner.ownership, WordOf(epoch(), arena::kNobody));
  Announce();
}

uint64_t Ownership::word() const { return arena::LoadAcquire(record().ownership); }

bool Ownership::Move(uint64_t seen, uint32_t to, uint32_t sequence) {
  const uint64_t word = arena::PackOwnership(arena::OwnershipEpoch(seen), to, sequence);
  const bool moved =
      std::atomic_ref<uint64_t>(record().ownership).compare_exchange_strong(seen, word);
  if (moved) Announce();
  return moved;
}

// All former owners have released, or are dead: every bank is free.
absl::Status Ownership::TakeClaimed(uint32_t worker_slot, uint64_t worker_id) {
  if (owner_slot() != (arena::kClaim | worker_slot)) {
    return absl::AbortedError(
        absl::StrCat("shard ", shard_, " is not claimed any more: another process of the service ",
                     "has written over the word that says whose it is"));
  }
  const uint64_t head = arena_->shard(shard_).commit_head;
  if (arena::CursorIsOf(head, epoch())) {  // else a claimant died in the middle of this
    record().cut_tail = arena::CursorIndex(head);
    record().cut_epoch = epoch();
    arena::OrderForCrash();
  }
  const uint64_t next = epoch() + 1;
  PrepareEpoch(next, worker_id);
  BATON_CRASH_POINT("ownership-epoch-prepared");
  BeginEpoch(next, worker_slot);
  return absl::OkStatus();
}

void Ownership::HandOver() {
  record().release_requested = 0;
  record().owner_worker_id = 0;
  arena::StoreRelease(record().ownership, WordOf(epoch(), arena::kNobody));
  Announce();
}

void Ownership::ProveDead(uint64_t worker_id) {
  for (uint64_t& writer : writers_) {
    if (writer == worker_id) writer = 0;
  }
}

void Ownership::NameHeir(uint64_t worker_id) {
  arena::StoreRelaxed(record().heir_worker_id, worker_id);
}

void Ownership::AskRelease(bool ask) {
  arena::StoreRelease(record().release_requested, ask ? epoch() : 0);
  Announce();
}

void Ownership::Announce() {
  // Several processes of a native service count.
  std::atomic_ref<uint64_t>(arena_->header().ownership_changes)
      .fetch_add(1, std::memory_order_release);
}

}  // namespace baton::driver
