// CRC32C (Castagnoli), as iSCSI and ext4 use it, with the instruction that x86 has for it, or with
// tables where there is none, or where they are faster: the first use measures that.
#ifndef LIB_BASE_CRC32C_H_
#define LIB_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace baton {

// Returns the checksum of bytes whose beginning has the checksum `crc` (nothing: 0), and which go
// on with the `length` bytes at `data`.
uint32_t Crc32c(uint32_t crc, const void* data, size_t length);

// Each of the two ways. For tests. Without the instruction, both use tables.
uint32_t Crc32cByTable(uint32_t crc, const void* data, size_t length);
uint32_t Crc32cByInstruction(uint32_t crc, const void* data, size_t length);

}  // namespace baton

#endif  // LIB_BASE_CRC32C_H_
