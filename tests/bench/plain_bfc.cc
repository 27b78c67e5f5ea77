#include "tests/bench/plain_bfc.h"

#include <algorithm>
#include <bit>

namespace baton::bench {

PlainBfc::PlainBfc(uint64_t bytes)
    : chunk_at_(bytes / kUnitBytes, kNone), bins_(kBins, Bin(SmallestFirst{&chunks_})) {
  Insert(NewChunk({0, bytes / kUnitBytes, kNone, kNone, false}));
}

uint32_t PlainBfc::BinOf(uint64_t units) {
  return std::min(static_cast<uint32_t>(std::bit_width(units)) - 1, kBins - 1);
}

uint32_t PlainBfc::NewChunk(const Chunk& chunk) {
  uint32_t index;
  if (unused_.empty()) {
    index = static_cast<uint32_t>(chunks_.size());
    chunks_.push_back(chunk);
  } else {
    index = unused_.back();
    unused_.pop_back();
    chunks_[index] = chunk;
  }
  chunk_at_[chunk.offset] = index;
  return index;
}

void PlainBfc::Insert(uint32_t index) {
  chunks_[index].is_free = true;
  free_units_ += chunks_[index].units;
  bins_[BinOf(chunks_[index].units)].insert(index);
}

void PlainBfc::Remove(uint32_t index) {
  bins_[BinOf(chunks_[index].units)].erase(index);
  free_units_ -= chunks_[index].units;
  chunks_[index].is_free = false;
}

// Leaves `units` of the chunk, which is in no bin, and makes the rest a free one.
void PlainBfc::Split(uint32_t index, uint64_t units) {
  const Chunk whole = chunks_[index];
  const uint32_t rest =
      NewChunk({whole.offset + units, whole.units - units, index, whole.behind, false});
  if (whole.behind != kNone) chunks_[whole.behind].before = rest;
  chunks_[index].units = units;
  chunks_[index].behind = rest;
  Insert(rest);
}

// Both are in no bin.
void PlainBfc::Join(uint32_t index, uint32_t behind) {
  const Chunk gone = chunks_[behind];
  chunks_[index].units += gone.units;
  chunks_[index].behind = gone.behind;
  if (gone.behind != kNone) chunks_[gone.behind].before = index;
  chunk_at_[gone.offset] = kNone;
  unused_.push_back(behind);
}

std::optional<uint64_t> PlainBfc::Allocate(uint64_t bytes) {
  const uint64_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  for (uint32_t bin = BinOf(units); bin < kBins; ++bin) {
    const auto found = bins_[bin].lower_bound(Wanted{units});
    if (found == bins_[bin].end()) continue;
    const uint32_t index = *found;
    Remove(index);
    if (chunks_[index].units > units) Split(index, units);
    return chunks_[index].offset * kUnitBytes;
  }
  return {};
}

void PlainBfc::Free(uint64_t offset) {
  uint32_t index = chunk_at_[offset / kUnitBytes];
  if (const uint32_t behind = chunks_[index].behind; behind != kNone && chunks_[behind].is_free) {
    Remove(behind);
    Join(index, behind);
  }
  if (const uint32_t before = chunks_[index].before; before != kNone && chunks_[before].is_free) {
    Remove(before);
    Join(before, index);
    index = before;
  }
  Insert(index);
}

}  // namespace baton::bench
