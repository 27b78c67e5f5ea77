// Bounds of a NIC. It refuses what exceeds them with ENOSPC or EINVAL.
#ifndef LIB_NIC_LIMITS_H_
#define LIB_NIC_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace baton::nic {

// Bounds of the whole NIC. A file gets at most half of the objects that the others leave, so that
// there are always some for another file.
inline constexpr size_t kMaxSockets = 1024;
inline constexpr size_t kMaxRegions = 131'072;
inline constexpr size_t kMaxCompletionQueues = 8192;
inline constexpr size_t kMaxSharedReceiveQueues = 8192;
// Bounds of each file.
inline constexpr size_t kMaxSocketsOfFile = 128;
inline constexpr size_t kMaxFiles = 320;  // that are mapped
inline constexpr size_t kMaxRegisters = 4096;
inline constexpr size_t kMaxChannels = 4096;
inline constexpr size_t kMaxIds = 262'144;
inline constexpr size_t kMaxListeners = 1024;

// A turn of the NIC takes about this many rings of each file.
inline constexpr uint32_t kMaxRingsInTurn = 1024;

inline constexpr uint64_t kMaxFileBytes = uint64_t{96} << 40;  // of all that a file has mapped
inline constexpr uint32_t kMaxQueueEntries = 1u << 22;         // of a completion queue
inline constexpr uint32_t kMaxReceiveBytes = 256;              // of a slot

}  // namespace baton::nic

#endif  // LIB_NIC_LIMITS_H_
