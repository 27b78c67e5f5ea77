#include "lib/driver/ownership.h"

#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"

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
  arena::ShardRecord& shard = arena_->shard(shard_);
  arena::BankHeader& bank = arena_->bank(shard_, next);
  arena::StoreRelaxed(bank.tail, arena::PackCursor(next, 0));
  // Not what a former writer of the bank has left there: it would be blamed on this one's death.
  arena::StoreRelaxed(bank.read_cursor, shard.acknowledged);
  arena::StoreRelaxed(bank.handling, arena::kHandlingNotTold);
  shard.commit_head = arena::PackCursor(next, 0);
  shard.owner.owner_worker_id = worker_id;
  shard.owner.release_requested = 0;
  writers_[next % arena::kCommitBanks] = worker_id;
  // The one word that moves the shard: everything above is visible with it.
  arena::StoreRelease(shard.owner.ownership, arena::PackOwnership(next, worker_slot));
  Announce();
}

void Ownership::End(bool released) {
  BATON_CHECK(owned());
  arena::ShardRecord& shard = arena_->shard(shard_);
  shard.owner.cut_epoch = epoch();
  shard.owner.cut_tail = arena::CursorIndex(shard.commit_head);
  shard.owner.release_requested = 0;
  shard.owner.owner_worker_id = 0;
  if (released) writers_[epoch() % arena::kCommitBanks] = 0;
  arena::StoreRelease(shard.owner.ownership, arena::PackOwnership(epoch(), arena::kNobody));
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
  uint64_t& changes = arena_->header().ownership_changes;
  arena::StoreRelease(changes, changes + 1);
}

}  // namespace baton::driver
