#include "tests/simulation/keeper/shard_engine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::simulation {

void ShardEngine::AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake,
                            driver_process::StateVersions versions, Standing standing) {
  context_.Note("the driver adds a worker", id, slot);
  if (id <= last_id_) context_.Break(absl::StrCat("K2: worker number ", id, " is used twice"));
  if (roster[slot].id != 0) {
    context_.Break(absl::StrCat("K2: worker ", id, " gets the slot of worker ", roster[slot].id));
  }
  last_id_ = id;
  InlineEngine::AddWorker(slot, id, std::move(wake), versions, standing);
}

void ShardEngine::SetReady(uint32_t slot) {
  roster[slot].ready = true;
  AssignWaiting();
}

void ShardEngine::SetSilent(uint32_t slot, uint64_t id, bool silent) {
  if (roster.Find(slot, id) == nullptr) return;
  roster[slot].silent = silent;
  AssignWaiting();
}

void ShardEngine::SetStanding(uint32_t slot, uint64_t id, Standing standing) {
  if (roster.Find(slot, id) != nullptr) roster[slot].standing = standing;
}

void ShardEngine::AskToStop(uint32_t slot, uint64_t id) {
  if (roster.Find(slot, id) != nullptr) roster.AskToStop(slot);
}

bool ShardEngine::IsIdle(uint32_t slot, uint64_t id) const {
  return roster[slot].id != id ||
         std::none_of(shards_.begin(), shards_.end(), [id](const Shard& shard) {
           return shard.owner_id == id || shard.to_id == id;
         });
}

void ShardEngine::Retire(uint32_t slot, uint64_t id, bool retired) {
  if (roster.Find(slot, id) != nullptr) roster[slot].retired = retired;
}

void ShardEngine::WorkerEnded(uint32_t slot, uint64_t id, std::string_view) {
  if (roster.Find(slot, id) == nullptr || roster[slot].ended) return;
  roster[slot].ended = true;
  for (Shard& shard : shards_) {
    if (shard.to_id == id) {
      Finish(shard, absl::UnavailableError("the successor died before it took over"));
    }
    if (shard.owner_id != id) continue;
    Vacate(shard);
    Assign(shard);
  }
}

void ShardEngine::WorkerDead(uint32_t slot, uint64_t id) {
  if (roster.Find(slot, id) == nullptr) return;
  context_.Note("the driver knows a worker dead", id, slot);
  WorkerEnded(slot, id, "crash");
  InlineEngine::WorkerDead(slot, id);
  AssignWaiting();
}

void ShardEngine::Handoff(uint32_t index, uint32_t slot, HandoffDone done) {
  Shard& shard = shards_[index];
  const absl::Status fit = driver_process::Roster::CheckSuccessor(roster[slot], 0);
  if (!fit.ok()) return done(fit, 0);
  if (shard.to_id != 0) {
    return done(absl::AbortedError("another handoff of this shard is under way"), 0);
  }
  if (shard.owner_id == roster[slot].id) return done(absl::OkStatus(), 0);
  shard.to_id = roster[slot].id;
  shard.done = std::move(done);
  if (shard.owner_id == 0) Assign(shard);
}

void ShardEngine::CancelHandoff(uint32_t index, const absl::Status& why) {
  if (shards_[index].to_id != 0) Finish(shards_[index], why);
}

driver_process::ShardOwner ShardEngine::owner(uint32_t shard) const {
  const Shard& one = shards_[shard];
  return {one.epoch, one.owner_id, one.slot, 0};
}

// ---------------------------------------------------------------- what a worker does

void ShardEngine::Release(uint64_t id) {
  for (Shard& shard : shards_) {
    if (shard.owner_id != id) continue;
    if (shard.to_id == 0) roster[shard.slot].ready = false;
    Vacate(shard);
    Assign(shard);
  }
}

bool ShardEngine::StepHandoff(uint64_t id) {
  for (Shard& shard : shards_) {
    if (shard.to_id == 0) continue;
    if (shard.owner_id == id && shard.to_id != id) {
      Vacate(shard);
      Assign(shard);
      // The successor hangs, say. As the engine does it, which asks an owner for its release once.
      if (shard.owner_id != 0 && shard.owner_id != shard.to_id) {
        Finish(shard, absl::AbortedError("another worker took the shard over"));
      }
      return true;
    }
    if (shard.owner_id == id) {
      Finish(shard, absl::OkStatus());
      return true;
    }
  }
  return false;
}

// ---------------------------------------------------------------- shards

void ShardEngine::Assign(Shard& shard) {
  const uint32_t slot = roster.Choose({0, shard.to_id, arena::kNobody});
  if (slot == arena::kNobody) return;
  shard.slot = slot;
  shard.owner_id = roster[slot].id;
  ++shard.epoch;
  ++roster[slot].shards;
  context_.Note("a shard has an owner", static_cast<uint64_t>(&shard - shards_.data()),
                shard.owner_id);
}

void ShardEngine::AssignWaiting() {
  for (Shard& shard : shards_) {
    if (shard.owner_id == 0) Assign(shard);
  }
}

void ShardEngine::Vacate(Shard& shard) {
  --roster[shard.slot].shards;
  shard.owner_id = 0;
  shard.slot = arena::kNobody;
}

void ShardEngine::Finish(Shard& shard, const absl::Status& status) {
  shard.to_id = 0;
  const HandoffDone done = std::exchange(shard.done, nullptr);
  if (done) done(status, 1);
}

}  // namespace baton::simulation
