// Two neighbouring words of a structure in shared memory with one store.
//
// A line that the other side has read is not ours to write at once, and until it is each store
// waits in the processor's store buffer, behind which everything else waits when it is full: half
// as many stores are worth 5 % of the message rate (tests/bench/RESULTS.md).
#ifndef LIB_ARENA_STORE_PAIR_H_
#define LIB_ARENA_STORE_PAIR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton::arena {

// At `Offset`, a multiple of 8, and 4 bytes behind it.
template <size_t Offset, typename T>
void StorePair(T& to, uint32_t first, uint32_t second) {
  static_assert(Offset % sizeof(uint64_t) == 0 && Offset + sizeof(uint64_t) <= sizeof(T));
  const uint64_t both = uint64_t{second} << 32 | first;  // little-endian, as the layout is
  std::memcpy(reinterpret_cast<uint8_t*>(&to) + Offset, &both, sizeof(both));
}

// Likewise, of which the first is four bytes.
constexpr uint32_t FourBytes(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return a | uint32_t{b} << 8 | uint32_t{c} << 16 | uint32_t{d} << 24;
}

}  // namespace baton::arena

#endif  // LIB_ARENA_STORE_PAIR_H_
