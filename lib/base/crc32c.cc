#include "lib/base/crc32c.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/base/clock.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace baton {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kPolynomial = 0x82f63b78;  // its bits in reverse

// Table k has the checksums of one byte with k zero bytes behind it.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint64_t Load(const uint8_t* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

uint32_t ByTable(uint32_t crc, const uint8_t* data, size_t length) {
  for (; length >= 8; data += 8, length -= 8) {
    const uint64_t word = Load(data) ^ crc;
    crc = 0;
    for (uint32_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][word >> 8 * i & 0xff];
  }
  for (; length > 0; ++data, --length) crc = crc >> 8 ^ kTables[0][(crc ^ *data) & 0xff];
  return crc;
}

#if defined(__x86_64__)

[[gnu::target("sse4.2")]] uint32_t ByInstruction(uint32_t crc, const uint8_t* data, size_t length) {
  uint64_t wide = crc;
  for (; length >= 8; data += 8, length -= 8) wide = _mm_crc32_u64(wide, Load(data));
  crc = static_cast<uint32_t>(wide);
  for (; length > 0; ++data, --length) crc = _mm_crc32_u8(crc, *data);
  return crc;
}
bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }

#else

uint32_t ByInstruction(uint32_t crc, const uint8_t* data, size_t length) {
  return ByTable(crc, data, length);
}
bool HasInstruction() { return false; }

#endif

using Way = uint32_t (*)(uint32_t, const uint8_t*, size_t);

// Returns the shortest of a few attempts: others may have used the processor in some.
uint64_t Nanoseconds(Way way) {
  constexpr std::array<uint8_t, 4096> kBytes = {};
  uint64_t shortest = UINT64_MAX;
  for (int i = 0; i < 5; ++i) {
    const uint64_t began = MonotonicNanoseconds();
    volatile const uint32_t crc = way(0, kBytes.data(), kBytes.size());
    (void)crc;
    shortest = std::min(shortest, MonotonicNanoseconds() - began);
  }
  return shortest;
}

// The instruction has four times the table's speed, but an emulated processor calls a function for
// each, which takes five times as long as the table.
Way ChooseWay() {
  if (!HasInstruction()) return ByTable;
  return Nanoseconds(ByInstruction) <= Nanoseconds(ByTable) ? ByInstruction : ByTable;
}

}  // namespace

uint32_t Crc32c(uint32_t crc, const void* data, size_t length) {
  static const Way way = ChooseWay();
  return ~way(~crc, static_cast<const uint8_t*>(data), length);
}

uint32_t Crc32cByTable(uint32_t crc, const void* data, size_t length) {
  return ~ByTable(~crc, static_cast<const uint8_t*>(data), length);
}

uint32_t Crc32cByInstruction(uint32_t crc, const void* data, size_t length) {
  const Way way = HasInstruction() ? ByInstruction : ByTable;
  return ~way(~crc, static_cast<const uint8_t*>(data), length);
}

}  // namespace baton
