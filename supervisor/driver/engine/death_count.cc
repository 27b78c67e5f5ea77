#include "supervisor/driver/engine/death_count.h"

#include <algorithm>

#include "lib/arena/atomic_access.h"

namespace baton::driver_process {

Death DescribeDeath(const arena::Arena& arena, uint32_t shard, uint64_t epoch, uint64_t worker_id,
                    uint64_t logged) {
  const arena::ShardRecord& record = arena.shard(shard);
  Death death;
  death.worker_id = worker_id;
  death.acknowledged = record.acknowledged;
  death.logged = std::min(logged, record.completion_tail);
  // A worker gets completions only after its first commit, which says that it has adopted the
  // shard. The cut records how much was committed. A claimant calls this before the cut, so it
  // reads the commit head.
  const bool committed = record.owner.cut_epoch == epoch
                             ? record.owner.cut_tail != 0
                             : arena::CursorIsOf(record.commit_head, epoch) &&
                                   arena::CursorIndex(record.commit_head) != 0;
  if (!committed) return death;
  const arena::BankHeader& bank = arena.bank(shard, epoch);
  const uint64_t handling = arena::LoadRelaxed(bank.handling);
  if (handling > record.acknowledged && handling <= death.logged) {
    death.handling = handling - 1;
  } else if (handling == arena::kHandlingNotTold) {
    death.in_the_dark = death.logged > record.acknowledged;
  } else {
    const uint64_t read = std::min(arena::LoadRelaxed(bank.read_cursor), death.logged);
    death.in_the_dark = read > record.acknowledged;
  }
  return death;
}

DeathCount::DeathCount(const arena::DeathsRecord& saved)
    : acknowledged_(saved.acknowledged),
      logged_(saved.logged),
      deaths_(saved.deaths),
      run_(saved.run) {
  if (saved.suspect != 0) suspect_ = saved.suspect - 1;
  for (uint32_t i = 0; i < std::min(saved.remembered, arena::kRememberedDeaths); ++i) {
    Death& death = last_.emplace_back();
    death.worker_id = saved.last[i].worker_id;
    if (saved.last[i].handling != 0) death.handling = saved.last[i].handling - 1;
  }
}

void DeathCount::Save(arena::DeathsRecord* saved) const {
  saved->acknowledged = acknowledged_;
  saved->logged = logged_;
  saved->deaths = deaths_;
  saved->run = run_;
  saved->suspect = suspect_ ? *suspect_ + 1 : 0;
  saved->remembered = static_cast<uint32_t>(last_.size());
  for (uint32_t i = 0; i < last_.size(); ++i) {
    saved->last[i] = {last_[i].worker_id, last_[i].handling ? *last_[i].handling + 1 : 0};
  }
}

DeathCount::Blame DeathCount::Add(const Death& death, uint32_t limit) {
  if (!death.handling && !death.in_the_dark) return Blame::kNobody;
  const bool again = death.handling && death.handling == suspect_;
  // A death that names the same completion shows no progress: an owner that commits more often has
  // only acknowledged more on its way there.
  if (!again && death.acknowledged != acknowledged_) Clear();
  acknowledged_ = death.acknowledged;
  if (deaths_++ == 0) logged_ = death.logged;
  if (death.handling) {
    run_ = again ? run_ + 1 : 1;
    suspect_ = death.handling;
  }
  last_.push_back(death);
  if (last_.size() > kRemembered) last_.pop_front();
  if (run_ >= limit) return Blame::kSuspect;
  // Blaming the oldest takes more deaths if they named different completions.
  const uint64_t patience = suspect_ ? uint64_t{2} * limit : limit;
  return deaths_ >= patience ? Blame::kOldest : Blame::kNobody;
}

void DeathCount::Clear() { *this = DeathCount(); }

std::vector<uint64_t> DeathCount::WorkersOf(Blame blame) const {
  std::vector<uint64_t> workers;
  for (const Death& death : last_) {
    if (blame == Blame::kSuspect && death.handling != suspect_) continue;
    workers.push_back(death.worker_id);
  }
  if (workers.size() > DeathsOf(blame))
    workers.erase(workers.begin(), workers.end() - DeathsOf(blame));
  return workers;
}

}  // namespace baton::driver_process
