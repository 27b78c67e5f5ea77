#include "supervisor/driver/native/claims.h"

#include <algorithm>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "supervisor/driver/engine/death_watcher.h"

namespace baton::driver_process {

void Claims::Inherit() {
  for (uint32_t shard = 0; shard < ownerships_.size(); ++shard) {
    // Reads the word before the heir. `baton-driver` names another heir before it asks for a
    // release, so a worker that sees the released word also sees that another is the heir.
    const uint64_t word = ownerships_[shard].word();
    BATON_CRASH_POINT("native-owner-seen");
    if (arena::LoadAcquire(arena_.succession(shard).heir) != options_.slot + 1) continue;
    if (!MayClaim(shard, word)) continue;
    BATON_CRASH_POINT("native-before-claim");
    if (ownerships_[shard].Claim(word, options_.slot)) {
      BATON_CRASH_POINT("native-claimed");
    }
  }
}

bool Claims::MayClaim(uint32_t shard, uint64_t word) const {
  const uint32_t slot = arena::OwnershipSlot(word);
  const uint32_t former = arena::ClaimantOrOwner(slot);
  if (former == options_.slot || driver_.Operates(shard)) return false;
  if (slot == arena::kNobody) return true;
  if (former >= arena_.shape().workers) return false;  // `baton-driver` repairs it
  return options_.may_take_from_the_dead && DeathWatcher::IsDead(arena_, former);
}

bool Claims::IsNoted(uint32_t shard) const {
  return std::any_of(claimed_.begin(), claimed_.end(),
                     [shard](const Claimed& one) { return one.shard == shard; });
}

// Puts the shard with the most connections first, because the most peers wait for it.
void Claims::Note(const std::function<void(const driver::Ownership& shard)>& on_claimed) {
  const size_t noted = claimed_.size();
  for (uint32_t shard = 0; shard < ownerships_.size(); ++shard) {
    // A shard that is claimed and operated here was claimed by another worker, which wrote that.
    if (!IsClaimedByUs(shard) || driver_.Operates(shard) || IsNoted(shard)) continue;
    on_claimed(ownerships_[shard]);
    claimed_.push_back({shard, {}, driver_.AcceptTargets(shard)});
  }
  if (claimed_.size() == noted) return;
  FindConnections();
  std::stable_sort(claimed_.begin(), claimed_.end(), [this](const Claimed& a, const Claimed& b) {
    return arena_.shard(a.shard).connections > arena_.shard(b.shard).connections;
  });
}

// Makes one pass, however many shards are claimed. Nobody accepts connections into a claimed shard.
// `baton-driver` may give it new ones meanwhile, and they come with a notice.
void Claims::FindConnections() {
  std::vector<std::vector<uint32_t>*> lists(ownerships_.size(), nullptr);
  for (Claimed& one : claimed_) {
    one.connections.clear();
    lists[one.shard] = &one.connections;
  }
  for (uint32_t i = 0; i < arena_.shape().connections; ++i) {
    const uint32_t shard = arena::LoadAcquire(arena_.connection(i).shard);
    if (shard < lists.size() && lists[shard] != nullptr) lists[shard]->push_back(i);
  }
}

// Takes shards together if one accepts connections into the other: only a driver that has adopted
// both can finish that.
std::vector<Claimed> Claims::Next() {
  const auto accepts = [](const Claimed& from, const Claimed& to) {
    return std::find(from.accepts_into.begin(), from.accepts_into.end(), to.shard) !=
           from.accepts_into.end();
  };
  std::vector<Claimed> together;
  const auto take = [&](size_t i) {
    together.push_back(std::move(claimed_[i]));
    claimed_.erase(claimed_.begin() + static_cast<ptrdiff_t>(i));
  };
  take(0);
  for (size_t i = 0; i < together.size(); ++i) {
    for (size_t j = 0; j < claimed_.size();) {
      if (accepts(together[i], claimed_[j]) || accepts(claimed_[j], together[i])) {
        take(j);
      } else {
        ++j;
      }
    }
  }
  std::erase_if(together, [this](const Claimed& one) {
    return !IsClaimedByUs(one.shard) || driver_.Operates(one.shard);
  });
  return together;
}

}  // namespace baton::driver_process
