// An arena in a file (snapshot_file.md has its bytes).
#ifndef SUPERVISOR_INSPECT_SNAPSHOT_FILE_H_
#define SUPERVISOR_INSPECT_SNAPSHOT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "supervisor/inspect/arena_view.h"
#include "supervisor/inspect/memory.h"

namespace baton::inspect {

inline constexpr uint64_t kSnapshotMagic = 0x504e'534e'4f54'4142;  // "BATONSNP"
inline constexpr uint32_t kSnapshotVersion = 1;
inline constexpr uint64_t kSnapshotPage = 4096;

struct SnapshotPart {
  uint64_t offset;
  uint64_t bytes;
  uint32_t checksum;
  uint32_t reserved[3];
};
static_assert(sizeof(SnapshotPart) == 32);

struct SnapshotHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t checksum;
  uint64_t file_bytes;
  int64_t unix_micros;
  uint64_t monotonic_ns;
  uint32_t layout_version;
  int32_t pid;
  char service[64];
  char release[32];
  char program[32];
  char decoder[256];
  SnapshotPart parts[4];  // by arena::MemoryKind
  uint8_t reserved[3536];
};
static_assert(offsetof(SnapshotHeader, file_bytes) == 16);
static_assert(offsetof(SnapshotHeader, layout_version) == 40);
static_assert(offsetof(SnapshotHeader, service) == 48);
static_assert(offsetof(SnapshotHeader, decoder) == 176);
static_assert(offsetof(SnapshotHeader, parts) == 432);
static_assert(sizeof(SnapshotHeader) == kSnapshotPage);
static_assert(std::is_trivially_copyable_v<SnapshotHeader>);

struct SnapshotOptions {
  bool buffers = false;    // save the buffers, too
  bool overwrite = false;  // replace a file that exists
  std::string decoder = {};
};

// Writes another file and renames it to `path` when all of it is on the disk, so `path` is a whole
// snapshot or unchanged. Returns the bytes of the file. kAlreadyExists: the file exists.
// kResourceExhausted: the disk has no room. kFailedPrecondition: the buffers are wanted and cannot
// be had.
absl::StatusOr<uint64_t> SaveSnapshot(const ArenaView& arena, const std::string& path,
                                      const SnapshotOptions& options);

// kDataLoss: the file is no snapshot, or a damaged one. kFailedPrecondition: it has another
// version.
absl::StatusOr<ArenaFiles> OpenSnapshot(const std::string& path);

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_SNAPSHOT_FILE_H_
