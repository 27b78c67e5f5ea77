// Writes neighbouring fields of a structure in shared memory with one store.
//
// A store to a line that the other side has cached waits in the processor's store buffer until the
// line arrives. When the buffer is full, all other stores wait, too. tests/bench/RESULTS.md has the
// effect.
#ifndef LIB_ARENA_STORE_PAIR_H_
#define LIB_ARENA_STORE_PAIR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton::arena {

// Packs neighbouring fields, little-endian like the layout.
constexpr uint32_t FourBytes(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return a | uint32_t{b} << 8 | uint32_t{c} << 16 | uint32_t{d} << 24;
}
constexpr uint64_t TwoFields(uint32_t first, uint32_t second) {
  return uint64_t{second} << 32 | first;
}

// Stores 16 bytes at `Offset`, a multiple of 16.
template <size_t Offset, typename T>
void StorePair(T& to, uint64_t first, uint64_t second) {
  using Pair [[gnu::vector_size(16)]] = uint64_t;
  static_assert(Offset % sizeof(Pair) == 0 && Offset + sizeof(Pair) <= sizeof(T));
  const Pair both = {first, second};
  std::memcpy(reinterpret_cast<uint8_t*>(&to) + Offset, &both, sizeof(both));
}

}  // namespace baton::arena

#endif  // LIB_ARENA_STORE_PAIR_H_
