#include "lib/driver/ownership.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/crash_point.h"

namespace baton::driver {

// Skips epochs whose bank a former owner may still write. An epoch that is prepared and not begun
// has no writer: its driver died before the word named the owner. No other is taken then, so that
// the writer which is noted there is the next one's.
uint64_t Ownership::NextEpoch() const {
  uint64_t free = 0;
  for (uint64_t next = epoch() + arena::kCommitBanks; next > epoch(); --next) {
    if (arena::CursorIsOf(arena_->shard(shard_).commit_head, next)) return next;
    if (writer(next) == 0) free = next;
  }
  return free;
}

bool Ownership::CanGive() const { return NextEpoch() != 0; }

void Ownership::GiveTo(uint32_t worker_slot, uint64_t worker_id) {
  const uint64_t next = NextEpoch();
  BATON_CHECK(!owned() && next != 0);
  PrepareEpoch(next, worker_id);
  BATON_CRASH_POINT("change-epoch-prepared");
  arena::OrderForCrash();
  arena::StoreRelaxed(writer(next), worker_id);
  arena::OrderForCrash();
  BATON_CRASH_POINT("change-before-giving");
  word_.Store(next, worker_slot);  // this one store moves the shard
}

void Ownership::PrepareEpoch(uint64_t next, uint64_t worker_id) {
  arena::ShardRecord& shard = arena_->shard(shard_);
  arena::BankHeader& bank = arena_->bank(shard_, next);
  arena::StoreRelaxed(bank.tail, arena::PackCursor(next, 0));
  // Overwrites a former writer's values, which would direct the blame for this owner's death.
  arena::StoreRelaxed(bank.read_cursor, shard.acknowledged);
  arena::StoreRelaxed(bank.handling, arena::kHandlingNotTold);
  // All of them 0: this owner has not said how its heap is used.
  for (uint64_t* const hint : {&bank.heap_kept, &bank.heap_scratch, &bank.heap_held,
                               &bank.heap_largest, &bank.heap_free, &bank.heap_rest}) {
    arena::StoreRelaxed(*hint, uint64_t{0});
  }
  shard.commit_head = arena::PackCursor(next, 0);
  arena::StoreRelaxed(shard.owner.owner_worker_id, worker_id);
  arena::StoreRelaxed(shard.owner.release_requested, uint64_t{0});
}

void Ownership::End(bool released) {
  BATON_CHECK(owned());
  arena::ShardRecord& shard = arena_->shard(shard_);
  shard.owner.cut_tail = arena::CursorIndex(shard.commit_head);
  arena::OrderForCrash();
  shard.owner.cut_epoch = epoch();
  BATON_CRASH_POINT("change-cut");
  arena::StoreRelaxed(shard.owner.release_requested, uint64_t{0});
  arena::StoreRelaxed(shard.owner.owner_worker_id, uint64_t{0});
  if (released) arena::StoreRelaxed(writer(epoch()), uint64_t{0});
  arena::OrderForCrash();
  BATON_CRASH_POINT("change-before-vacating");
  word_.Store(epoch(), arena::kNobody);
}

// All former owners have released the shard or are dead, so every bank is free.
absl::StatusOr<uint64_t> Ownership::TakeClaimed(uint32_t worker_slot, uint64_t worker_id) {
  const auto lost = [this] {
    return absl::AbortedError(
        absl::StrCat("shard ", shard_, " is not claimed any more: another process of the service ",
                     "has written over the word that says whose it is"));
  };
  const uint64_t claimed = word();
  if (arena::OwnershipSlot(claimed) != (arena::kClaim | worker_slot)) return lost();
  const uint64_t ended = arena::OwnershipEpoch(claimed);
  const uint64_t head = arena_->shard(shard_).commit_head;
  if (arena::CursorIsOf(head, ended)) {  // else a claimant died in the middle of this
    record().cut_tail = arena::CursorIndex(head);
    record().cut_epoch = ended;
    arena::OrderForCrash();
  }
  PrepareEpoch(ended + 1, worker_id);
  BATON_CRASH_POINT("change-epoch-prepared");
  const std::optional<uint64_t> taken = word_.Take(claimed);
  if (!taken) return lost();
  return *taken;
}

bool Ownership::HandOver(uint64_t seen) {
  if (word() != seen) return false;
  arena::StoreRelaxed(record().release_requested, uint64_t{0});
  arena::StoreRelaxed(record().owner_worker_id, uint64_t{0});
  return Vacate(seen);
}

void Ownership::ProveDead(uint64_t worker_id) {
  for (uint64_t& writer : arena_->succession(shard_).writers) {
    if (writer == worker_id) arena::StoreRelaxed(writer, uint64_t{0});
  }
}

bool Ownership::MayWrite(uint64_t worker_id) const {
  const auto& writers = arena_->succession(shard_).writers;
  return std::find(std::begin(writers), std::end(writers), worker_id) != std::end(writers);
}

void Ownership::NameHeir(uint64_t worker_id) {
  arena::StoreRelaxed(record().heir_worker_id, worker_id);
}

void Ownership::AskRelease(uint64_t epoch) {
  if (this->epoch() != epoch) return;
  arena::StoreRelease(record().release_requested, epoch);
  Announce();
}

void Ownership::WithdrawRelease() {
  arena::StoreRelease(record().release_requested, uint64_t{0});
  Announce();
}

}  // namespace baton::driver
