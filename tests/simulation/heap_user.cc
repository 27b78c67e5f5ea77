#include "tests/simulation/heap_user.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/heap.h"

namespace baton::simulation {
namespace {

constexpr uint32_t kMostScratch = 6;
constexpr uint32_t kMostPages = 10;
constexpr uint32_t kMostMessageBytes = 3000;
constexpr uint32_t kStride = 256;  // between two words that are written

}  // namespace

// Whether it was done. What has no room is not.
bool HeapUser::Done(const absl::Status& status, const char* what) {
  if (status.ok()) return true;
  if (status.code() != absl::StatusCode::kResourceExhausted) {
    context_->Break(absl::StrCat("heap: ", what, ": ", status.message()));
  }
  return false;
}

HeapUser::Owned& HeapUser::Of(Shard& shard) {
  Owned& owned = shards_[shard.index()];
  if (owned.epoch == shard.epoch()) return owned;
  owned = {};
  owned.epoch = shard.epoch();
  const std::string_view state(reinterpret_cast<const char*>(shard.state().data()),
                               shard.state().size());
  HeapObjects named = {};
  if (!state.empty() && !Decode(state.substr(sizeof(ShardTotals)), &named)) {
    context_->Break(absl::StrCat("P1: shard ", shard.index(), " has torn state of its heap"));
  }
  for (const HeapObject& object : named.objects) {
    if (object.length != 0) owned.kept.push_back(object);
  }
  Verify(shard, owned);
  return owned;
}

// Sometimes the first use of the epoch comes later.
void HeapUser::OnAdopt(Shard& shard) {
  if (enabled() && context_->dice.OneIn(2)) (void)Of(shard);
}

std::string HeapUser::State(Shard& shard) {
  if (!enabled()) return {};
  HeapObjects named = {};
  const Owned& owned = Of(shard);
  std::copy(owned.kept.begin(), owned.kept.end(), named.objects);
  return Encode(named);
}

// ---------------------------------------------------------------- changes

bool HeapUser::Act(Shard& shard) {
  if (!enabled()) return false;
  Owned& owned = Of(shard);
  bool changed = false;
  for (uint32_t left = context_->dice.Below(4); left > 0 && !context_->broken(); --left) {
    changed |= Change(shard, owned);
  }
  if (context_->dice.OneIn(8)) Verify(shard, owned);
  return changed;
}

bool HeapUser::Change(Shard& shard, Owned& owned) {
  switch (context_->dice.Below(5)) {
    case 0:
      if (owned.kept.size() == kHeapObjects) return Free(shard, owned.kept);
      return Allocate(shard, owned, /*kept=*/true);
    case 1:
      if (owned.scratch.size() < kMostScratch) Allocate(shard, owned, /*kept=*/false);
      return false;
    case 2:
      return Keep(shard, owned);
    case 3:
      return Free(shard, owned.kept);
    default:
      Free(shard, owned.scratch);
      return false;
  }
}

void HeapUser::ActAndAbandon(Shard& shard) {
  Owned& owned = Of(shard);
  const Owned before = owned;
  for (uint32_t left = context_->dice.From(1, 4); left > 0 && !context_->broken(); --left) {
    const uint32_t choice = context_->dice.Below(3);
    if (choice == 0 && owned.kept.size() < kHeapObjects) Allocate(shard, owned, /*kept=*/true);
    if (choice == 1) Keep(shard, owned);
    if (choice == 2) Free(shard, owned.kept);
  }
  shard.Abandon();
  context_->Note("abandoned", shard.index());
  owned = before;
  Verify(shard, owned);
}

absl::StatusOr<Buffer> HeapUser::Take(Shard& shard, uint32_t length, bool kept) {
  const uint32_t alignment = context_->dice.OneIn(8) ? Heap::kMaxAlignment : Heap::kAlignment;
  absl::StatusOr<Buffer> buffer = kept ? shard.heap().Allocate(length, alignment)
                                       : shard.heap().AllocateScratch(length, alignment);
  if (!buffer.ok()) return buffer;
  context_->Note(kept ? "heap: allocated" : "heap: scratch", shard.index(), buffer->offset, length);
  if (buffer->offset % alignment != 0 || buffer->length != length) {
    context_->Break(absl::StrCat("heap: ", buffer->length, " bytes at ", buffer->offset,
                                 " are not the ", length, " at a multiple of ", alignment));
  }
  checker_->OnAllocated(shard.index(), *buffer);
  const Owned& owned = shards_[shard.index()];
  for (const auto* list : {&owned.kept, &owned.scratch}) {
    for (const HeapObject& object : *list) {
      const Buffer other = BufferOf(shard, object);
      if (buffer->offset < other.offset + other.length && other.offset < buffer->offset + length) {
        context_->Break(absl::StrCat("heap: what is at ", buffer->offset, " overlaps what is at ",
                                     other.offset));
      }
    }
  }
  return buffer;
}

// Returns whether it did.
bool HeapUser::Allocate(Shard& shard, Owned& owned, bool kept) {
  Dice& dice = context_->dice;
  const uint32_t length = dice.OneIn(4) ? dice.From(1, kMostPages * arena::kPageBytes)
                                        : dice.From(sizeof(uint64_t), arena::kPageBytes);
  const absl::StatusOr<Buffer> buffer = Take(shard, length, kept);
  if (!Done(buffer.status(), "Allocate")) return false;
  const auto offset =
      static_cast<uint32_t>(buffer->offset - arena::HeapOffset(arena_->shape(), shard.index()));
  const HeapObject object = {offset, length, dice.Next()};
  Write(shard, object);
  (kept ? owned.kept : owned.scratch).push_back(object);
  return true;
}

bool HeapUser::Keep(Shard& shard, Owned& owned) {
  if (owned.scratch.empty() || owned.kept.size() == kHeapObjects) return false;
  const HeapObject object = owned.scratch.back();
  if (!Done(shard.heap().Keep(BufferOf(shard, object)), "Keep")) return false;
  context_->Note("heap: kept", shard.index(), object.offset);
  owned.scratch.pop_back();
  owned.kept.push_back(object);
  return true;
}

// Returns whether it did.
bool HeapUser::Free(Shard& shard, std::vector<HeapObject>& from) {
  if (from.empty()) return false;
  const uint32_t place = context_->dice.Below(static_cast<uint32_t>(from.size()));
  VerifyContents(shard, from[place]);
  if (!Done(shard.heap().Free(BufferOf(shard, from[place])), "Free")) return false;
  context_->Note("heap: freed", shard.index(), from[place].offset);
  from.erase(from.begin() + place);
  return true;
}

// ---------------------------------------------------------------- messages

std::optional<Buffer> HeapUser::TakeMessage(Shard& shard) {
  if (!enabled() || !context_->dice.OneIn(2)) return {};
  (void)Of(shard);
  const uint32_t length = context_->dice.From(kMessageBytes, kMostMessageBytes);
  const absl::StatusOr<Buffer> buffer = Take(shard, length, /*kept=*/context_->dice.OneIn(2));
  if (!Done(buffer.status(), "Allocate")) return {};
  return *buffer;
}

// What was allocated in this transaction has its entry already: there is room to free it.
void HeapUser::GiveMessage(Shard& shard, const Buffer& message) {
  const absl::Status freed = shard.heap().Free(message);
  if (!freed.ok()) context_->Break(absl::StrCat("heap: Free: ", freed.message()));
}

// ---------------------------------------------------------------- what is expected

void HeapUser::Write(Shard& shard, const HeapObject& object) {
  uint8_t* const bytes = shard.heap().At(BufferOf(shard, object));
  for (uint32_t i = 0; i + sizeof(uint64_t) <= object.length; i += kStride) {
    const uint64_t word = object.stamp + i;
    std::memcpy(bytes + i, &word, sizeof(word));
  }
}

void HeapUser::VerifyContents(Shard& shard, const HeapObject& object) {
  const uint8_t* const bytes = shard.heap().At(BufferOf(shard, object));
  for (uint32_t i = 0; i + sizeof(uint64_t) <= object.length; i += kStride) {
    uint64_t word;
    std::memcpy(&word, bytes + i, sizeof(word));
    if (word == object.stamp + i) continue;
    return context_->Break(absl::StrCat("heap: shard ", shard.index(), " finds at ", object.offset,
                                        " + ", i, " what it has not written there"));
  }
}

void HeapUser::Verify(Shard& shard, const Owned& owned) {
  std::map<uint64_t, std::pair<uint32_t, bool>> expected;  // by offset: length, kept
  for (const HeapObject& object : owned.kept) {
    expected[BufferOf(shard, object).offset] = {object.length, true};
    VerifyContents(shard, object);
  }
  for (const HeapObject& object : owned.scratch) {
    expected[BufferOf(shard, object).offset] = {object.length, false};
    VerifyContents(shard, object);
  }
  const auto visit = [&](const Buffer& buffer, bool kept) {
    const auto found = expected.find(buffer.offset);
    if (found == expected.end() || found->second.first > buffer.length ||
        found->second.second != kept) {
      return context_->Break(absl::StrCat("heap: shard ", shard.index(), " has ", buffer.length,
                                          " bytes at ", buffer.offset, " that nobody knows"));
    }
    expected.erase(found);
  };
  const absl::Status visited = shard.heap().ForEachAllocated(visit);
  if (!visited.ok()) return context_->Break(absl::StrCat("heap: ", visited.message()));
  if (!expected.empty()) {
    return context_->Break(absl::StrCat("heap: shard ", shard.index(), " has lost what is at ",
                                        expected.begin()->first));
  }
  VerifyTotals(shard);
}

void HeapUser::VerifyTotals(Shard& shard) {
  const absl::StatusOr<Heap::Statistics> totals = shard.heap().statistics();
  if (!totals.ok()) return context_->Break(absl::StrCat("heap: ", totals.status().message()));
  const uint64_t sum = totals->kept + totals->scratch + totals->held + totals->free + totals->rest;
  if (sum == totals->bytes) return;
  context_->Break(absl::StrCat("heap: shard ", shard.index(), " accounts for ", sum, " of ",
                               totals->bytes, " bytes"));
}

}  // namespace baton::simulation
