// The files that `./run bench memory` sends.
#ifndef TESTS_BENCH_BENCH_FILE_H_
#define TESTS_BENCH_BENCH_FILE_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"

namespace baton::bench {

// How bench-file-worker sends a file.
enum class SendWay : uint32_t {
  kSendFile = 0,       // FileSender, without checksums
  kDynamicRegion = 1,  // the file's own pages, registered anew each time
  kCachedRegion = 2,   // the same, and they stay registered
  kSendChecked = 3,    // FileSender with checksums
};
constexpr bool UsesFileSender(SendWay way) {
  return way == SendWay::kSendFile || way == SendWay::kSendChecked;
}
// A peer's message to bench-file-worker. Its answers are messages with the bytes of such a file,
// each of which begins with a stream::PieceHeader if it UsesFileSender. The other ways end with a
// message of kEndBytes, when the worker has done all that the way asks for.
struct FileRequest {
  uint64_t transfer;  // its number
  uint64_t bytes;
  SendWay way;
  uint32_t reserved;
};
inline constexpr uint32_t kEndBytes = 8;

// Returns a memfd of `bytes`, a multiple of 8, which keeps its size. Its contents depend on nothing
// else.
absl::StatusOr<FileDescriptor> MakeFile(uint64_t bytes);
// Returns the first offset in such a file that differs from `memory`, which is to be its part at
// `offset`. Both lengths are multiples of 8.
std::optional<uint64_t> FirstWrong(absl::Span<const uint8_t> memory, uint64_t offset = 0);

}  // namespace baton::bench

#endif  // TESTS_BENCH_BENCH_FILE_H_
