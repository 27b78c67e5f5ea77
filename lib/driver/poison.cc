#include "lib/driver/poison.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/driver/queue_driver.h"

namespace baton::driver {
namespace {

using arena::CompletionEntry;
using arena::CompletionKind;
using arena::PoisonLevel;
using verbs::CompletionStatus;

bool IsVoid(const CompletionEntry& entry) { return (entry.flags & arena::kCompletionVoid) != 0; }

// Returns the lowest level at which an entry of this kind is void.
PoisonLevel VoidFrom(CompletionKind kind) {
  switch (kind) {
    case CompletionKind::kEstablished:
      return PoisonLevel::kFlushed;
    case CompletionKind::kSend:
    case CompletionKind::kReceive:
      return PoisonLevel::kSilent;
    default:
      return PoisonLevel::kVoid;
  }
}

}  // namespace

PoisonLevel LevelFor(const CompletionEntry& blamed) {
  const auto kind = CompletionKind(blamed.kind);
  const bool message = kind == CompletionKind::kSend || kind == CompletionKind::kReceive;
  if (message && CompletionStatus(blamed.status) == CompletionStatus::kSuccess) {
    return PoisonLevel::kFlushed;
  }
  return VoidFrom(kind);
}

void Spoil(PoisonLevel level, CompletionEntry* entry) {
  if (level == PoisonLevel::kNone || IsVoid(*entry)) return;
  const auto kind = CompletionKind(entry->kind);
  const bool now_void = level >= VoidFrom(kind);
  if (!now_void && kind != CompletionKind::kSend && kind != CompletionKind::kReceive) return;
  entry->status = static_cast<uint8_t>(CompletionStatus::kFlushError);
  entry->byte_len = 0;
  entry->immediate = 0;
  entry->flags = arena::kCompletionPoisoned;
  if (!now_void) return;
  entry->flags |= arena::kCompletionVoid;
  entry->generation ^= arena::kVoidGeneration;
}

std::optional<uint64_t> QueueDriver::OldestToBlame(uint32_t shard, uint64_t end) const {
  const DriverState& state = parts_->state;
  const CompletionLog& log = state.shards[shard].log;
  std::optional<uint64_t> oldest;
  for (uint64_t i = log.oldest(); i < std::min(end, log.tail()); ++i) {
    const CompletionEntry entry = arena::CopyOnce(state.arena->completion(shard, i));
    if (IsVoid(entry) || entry.connection >= state.connection_slots) continue;
    const arena::ConnectionRecord& connection = state.record(entry.connection);
    if (connection.generation == entry.generation && connection.poison == 0) return i;
    if (!oldest) oldest = i;
  }
  return oldest;
}

absl::StatusOr<CompletionEntry> QueueDriver::Poison(uint32_t shard, uint64_t completion,
                                                    std::string_view why,
                                                    std::optional<PoisonLevel> known) {
  DriverState& state = parts_->state;
  CompletionLog& log = state.shards[shard].log;
  const uint32_t slot =
      arena::OwnershipSlot(arena::LoadAcquire(state.arena->shard(shard).owner.ownership));
  if (slot != arena::kNobody && !arena::IsClaim(slot)) {
    return absl::FailedPreconditionError(absl::StrCat("shard ", shard, " has an owner"));
  }
  const uint64_t oldest = log.oldest();
  if (completion < oldest || completion >= log.tail()) {
    return absl::FailedPreconditionError(absl::StrCat("completion ", completion, " of shard ",
                                                      shard, " is none that waits for its owner"));
  }
  const CompletionEntry blamed = arena::CopyOnce(state.arena->completion(shard, completion));
  if (blamed.connection >= state.connection_slots) {
    return absl::FailedPreconditionError(absl::StrCat("completion ", completion, " of shard ",
                                                      shard, " is of no connection that exists"));
  }
  const uint32_t generation = arena::GenerationOf(blamed);
  arena::ConnectionRecord& connection = state.record(blamed.connection);
  // The level also applies to the connection's later completions. If the connection was accepted
  // into another shard, a living owner reads them there, so the connection ends as it would by
  // itself.
  PoisonLevel level = known.value_or(LevelFor(blamed));
  if (connection.generation == generation && connection.shard == shard) {
    level = std::max(level, PoisonLevel(connection.poison));
    connection.poison = static_cast<uint32_t>(level);
  }
  // Logs the connection's end at once if nothing of it is outstanding. A shard that this driver
  // does not operate has another driver, which knows nothing of these deaths.
  if (connection.generation == generation && Operates(state.ShardOf(connection))) {
    parts_->teardown.StartDraining(blamed.connection, CompletionStatus::kGeneralError, why);
  }
  log.Publish();
  // The next owner does not know a connection whose end is void, and regards its buffers as free.
  // So its earlier completions are void, too.
  const uint64_t first = level == PoisonLevel::kVoid ? oldest : completion;
  for (uint64_t i = first; i < log.tail(); ++i) {
    CompletionEntry& entry = state.arena->completion(shard, i);
    if (entry.connection == blamed.connection && arena::GenerationOf(entry) == generation) {
      Spoil(level, &entry);
    }
  }
  return blamed;
}

}  // namespace baton::driver
