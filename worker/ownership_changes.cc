#include "worker/ownership_changes.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"

namespace baton {

int OwnershipChanges::Handle() {
  if (!pending()) return 0;
  seen_changes_ = arena::LoadAcquire(arena_->header().ownership_changes);
  postponed_ = false;
  NoteStopRequest();
  BATON_CRASH_POINT("ownership-changed");
  int handled = 0;
  for (const auto& shard : shards_->all()) {
    const arena::OwnershipRecord& record = arena_->shard(shard->index_).owner;
    const uint64_t word = arena::LoadAcquire(record.ownership);
    const bool ours = arena::OwnershipSlot(word) == slot_;
    const uint64_t epoch = arena::OwnershipEpoch(word);
    if (shards_->Owns(*shard) && (!ours || shard->epoch_ != epoch)) {
      Lose(*shard);
      ++handled;
    }
    if (ours && !shards_->Owns(*shard)) handled += Adopt(*shard, epoch);
    if (IsAskedToRelease(*shard)) handled += ReleaseUnlessAwaited(*shard);
  }
  return handled;
}

// The native driver recovers the shards that it has claimed one by one. This worker adopts also the
// remaining ones, and gives them back with the rest, because no heir follows a claimant that ends
// in order.
void OwnershipChanges::AdoptTheRest() {
  const auto is_due = [this](const auto& shard) {
    const uint64_t word = arena::LoadAcquire(arena_->shard(shard->index_).owner.ownership);
    const uint32_t slot = arena::OwnershipSlot(word);
    if (slot == (arena::kClaim | slot_)) return true;
    return slot == slot_ && !shards_->Owns(*shard) &&
           arena::OwnershipEpoch(word) != shard->released_epoch_;
  };
  // One turn per shard at most, because another process can write the words, too.
  for (size_t i = 0; i < shards_->all().size(); ++i) {
    if (std::none_of(shards_->all().begin(), shards_->all().end(), is_due)) return;
    shards_->RecoverAndPoll();
    Handle();
  }
}

// The request is in the arena, where `baton-driver` stores it, so control is not needed.
void OwnershipChanges::NoteStopRequest() {
  if (shards_->layout_version() < 2 || stop_request_noted_) return;
  const uint64_t asked = arena::LoadAcquire(arena_->header().stop_requested);
  if ((asked >> slot_ & 1) == 0) return;
  stop_request_noted_ = true;
  notices_->AskShutdown("the keeper asks for it: another serves in its place, or stands by");
}

bool OwnershipChanges::Adopt(Shard& shard, uint64_t epoch) {
  // The ownership word names this worker until the driver has seen that it gave the shard back.
  // (The bank's tail cannot tell: a former owner's late store there has another epoch, and must not
  // keep this worker from adopting.)
  if (epoch == shard.released_epoch_) return false;
  if (NativeHost* native = shards_->native()) {
    native->Adopt(shard.index_, epoch);
    if (!native->status().ok()) return false;
  }
  const arena::ShardRecord& record = arena_->shard(shard.index_);
  shard.epoch_ = epoch;
  shard.bank_ = &arena_->bank(shard.index_, epoch);
  shard.bank_entries_ = &arena_->commit_entry(shard.index_, epoch, 0);
  shard.commit_tail_ = shard.folded_ = 0;
  shard.ForgetDelivered();
  shard.acknowledged_ = shard.delivered_ = record.acknowledged;
  shard.handed_ = shard.acknowledged_;
  shard.LoadSharedReceives();
  shard.state_slot_ = record.state_slot;
  shard.state_length_ = record.state_length;
  shard.state_version_ = record.state_version;
  shards_->TellHandling(shard, /*in_handler=*/false);
  BATON_CRASH_POINT("adopt-begin");
  const absl::Status adopted = service_->OnAdopt(shard);
  if (!adopted.ok()) {
    shard.Abandon();
    shard.Publish(/*release=*/true);
    shard.released_epoch_ = std::exchange(shard.epoch_, 0);
    return true;
  }
  BATON_CRASH_POINT("adopt-before-commit");
  // The first commit tells the driver that the shard is served again.
  shard.Publish(/*release=*/false);
  BATON_CRASH_POINT("adopt-committed");
  return true;
}

void OwnershipChanges::ReleaseAll() {
  (void)shards_->CommitStaged();  // before there is a shard that another's transaction moves into
  for (const auto& shard : shards_->all()) {
    if (shards_->Owns(*shard)) Release(*shard);
  }
}

void OwnershipChanges::LoseAll() {
  for (const auto& shard : shards_->all()) {
    if (shards_->Owns(*shard)) Lose(*shard);
  }
}

bool OwnershipChanges::IsAskedToRelease(const Shard& shard) const {
  const uint64_t& asked = arena_->shard(shard.index_).owner.release_requested;
  return shards_->Owns(shard) && arena::LoadAcquire(asked) == shard.epoch_;
}

bool OwnershipChanges::IsReleaseDue() const {
  return std::any_of(shards_->all().begin(), shards_->all().end(), [this](const auto& shard) {
    return IsAskedToRelease(*shard) && !shards_->AwaitsMove(*shard);
  });
}

// A connection that another shard's open transaction accepts into this one would be rejected if the
// driver applied the release first.
bool OwnershipChanges::ReleaseUnlessAwaited(Shard& shard) {
  if (shards_->AwaitsMove(shard)) (void)shards_->CommitStaged();
  if (shards_->AwaitsMove(shard)) {
    postponed_ = true;
    return false;
  }
  Release(shard);
  return true;
}

void OwnershipChanges::Release(Shard& shard) {
  service_->OnRelease(shard);
  BATON_CRASH_POINT("release-begin");
  if (shards_->commit_mode() == CommitMode::kManual) {
    shard.Abandon();
    shard.delivered_ = shard.acknowledged_;
    shard.ForgetDelivered();
  }
  shard.Publish(/*release=*/true);
  BATON_CRASH_POINT("release-published");
  shard.released_epoch_ = std::exchange(shard.epoch_, 0);
  shards_->ForgetSends();
}

void OwnershipChanges::Lose(Shard& shard) {
  shard.Abandon();
  shard.ForgetDelivered();
  const uint64_t epoch = std::exchange(shard.epoch_, 0);
  shards_->ForgetSends();
  if (NativeHost* native = shards_->native()) native->Release(shard.index_, epoch);
  service_->OnLost(shard);
}

}  // namespace baton
