#include "supervisor/driver/engine/shard_deaths.h"

#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/poison.h"

namespace baton::driver_process {
namespace {

using arena::DeathsRecord;

constexpr int kLoadAttempts = 4;  // no correct driver stores twice during each of them

uint32_t ValidCopy(const arena::Arena& arena, uint32_t shard) {
  return arena::LoadAcquire(arena.deaths(shard, 1).version) >
                 arena::LoadAcquire(arena.deaths(shard, 0).version)
             ? 1
             : 0;
}

void StoreDeaths(arena::Arena* arena, uint32_t shard, DeathsRecord deaths) {
  const uint32_t valid = ValidCopy(*arena, shard);
  DeathsRecord& written = arena->deaths(shard, 1 - valid);
  arena::StoreRelease(written.version, uint64_t{0});
  arena::FullFence();
  deaths.version = 0;
  written = deaths;
  BATON_CRASH_POINT("change-deaths-written");
  arena::StoreRelease(written.version, arena->deaths(shard, valid).version + 1);
}

// Records the completion that is blamed. Clears the count if none is left to blame.
void Blame(const arena::Arena& arena, const driver::QueueDriver& driver, uint32_t shard,
           const DeathCount& count, DeathCount::Blame blame, DeathsRecord* deaths) {
  const bool guessed = blame == DeathCount::Blame::kOldest;
  const std::optional<uint64_t> completion =
      guessed ? driver.OldestToBlame(shard, count.logged()) : count.suspect();
  if (!completion) {  // none is left
    DeathCount().Save(deaths);
    return;
  }
  deaths->guessed = guessed ? 1 : 0;
  deaths->blamed_level =
      static_cast<uint8_t>(driver::LevelFor(arena.completion(shard, *completion)));
  deaths->blamed = *completion + 1;
}

// Fails the connection. Where the shard has its next owner already, that was done before.
absl::StatusOr<arena::CompletionEntry> FailBlamed(const arena::Arena& arena,
                                                  driver::QueueDriver* driver, uint32_t shard,
                                                  const DeathsRecord& deaths) {
  const uint32_t slot =
      arena::OwnershipSlot(arena::LoadAcquire(arena.shard(shard).owner.ownership));
  const bool has_owner = slot != arena::kNobody && !arena::IsClaim(slot);
  if (has_owner) return arena::CopyOnce(arena.completion(shard, deaths.blamed - 1));
  return driver->Poison(shard, deaths.blamed - 1, "poisoned: owners died on it",
                        arena::PoisonLevel(deaths.blamed_level));
}

absl::StatusOr<Poisoning> PoisonBlamed(const arena::Arena& arena, driver::QueueDriver* driver,
                                       uint32_t shard, const DeathsRecord& deaths) {
  const DeathCount count(deaths);
  const DeathCount::Blame blame =
      deaths.guessed != 0 ? DeathCount::Blame::kOldest : DeathCount::Blame::kSuspect;
  BATON_ASSIGN_OR_RETURN(const arena::CompletionEntry entry,
                         FailBlamed(arena, driver, shard, deaths));
  return Poisoning{entry.connection,      arena::GenerationOf(entry),
                   deaths.blamed - 1,     arena::CompletionKind(entry.kind),
                   entry.sequence,        deaths.guessed != 0,
                   count.DeathsOf(blame), count.WorkersOf(blame)};
}

}  // namespace

DeathsRecord LoadDeaths(const arena::Arena& arena, uint32_t shard) {
  for (int i = 0; i < kLoadAttempts; ++i) {
    const DeathsRecord& valid = arena.deaths(shard, ValidCopy(arena, shard));
    const uint64_t version = arena::LoadAcquire(valid.version);
    if (version == 0) break;
    const DeathsRecord copy = arena::CopyOnce(valid);
    arena::FullFence();
    if (arena::LoadRelaxed(valid.version) == version) return copy;
  }
  return {};
}

absl::StatusOr<std::optional<Poisoning>> CountOwnerDeath(arena::Arena* arena,
                                                         driver::QueueDriver* driver,
                                                         uint32_t shard, uint64_t epoch,
                                                         const Death& death, uint32_t limit) {
  DeathsRecord deaths = LoadDeaths(*arena, shard);
  if (death.worker_id != 0 && deaths.blamed == 0 && deaths.counted_epoch < epoch) {
    DeathCount count(deaths);
    const DeathCount::Blame blame = count.Add(death, limit);
    count.Save(&deaths);
    deaths.counted_epoch = epoch;
    if (blame != DeathCount::Blame::kNobody) Blame(*arena, *driver, shard, count, blame, &deaths);
    StoreDeaths(arena, shard, deaths);
    BATON_CRASH_POINT("change-death-counted");
  }
  if (deaths.blamed == 0) return std::nullopt;
  BATON_ASSIGN_OR_RETURN(Poisoning poisoned, PoisonBlamed(*arena, driver, shard, deaths));
  BATON_CRASH_POINT("change-poisoned");
  return poisoned;
}

void ForgetBlamed(arena::Arena* arena, uint32_t shard, bool poisoned) {
  DeathsRecord deaths = LoadDeaths(*arena, shard);
  if (deaths.blamed == 0) return;
  DeathCount().Save(&deaths);
  deaths.blamed = 0;
  if (poisoned) ++deaths.poisoned;
  StoreDeaths(arena, shard, deaths);
}

}  // namespace baton::driver_process
