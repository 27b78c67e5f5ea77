// CRC32C (Castagnoli), as iSCSI and ext4 use it, with the instruction that x86 has for it. Other
// processors use tables.
#ifndef LIB_BASE_CRC32C_H_
#define LIB_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace baton {

// Returns the checksum of bytes whose beginning has the checksum `crc` (nothing: 0), and which go
// on with the `length` bytes at `data`.
uint32_t Crc32c(uint32_t crc, const void* data, size_t length);

// The same without the instruction. For tests.
uint32_t Crc32cByTable(uint32_t crc, const void* data, size_t length);

}  // namespace baton

#endif  // LIB_BASE_CRC32C_H_
