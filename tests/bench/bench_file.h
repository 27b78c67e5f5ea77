// The files that `./run bench memory` sends.
#ifndef TESTS_BENCH_BENCH_FILE_H_
#define TESTS_BENCH_BENCH_FILE_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"

namespace baton::bench {

// A peer's message to bench-file-worker, which answers with the pieces of such a file.
struct FileRequest {
  uint64_t transfer;  // its number
  uint64_t bytes;
};

// Returns a file of `bytes`, a multiple of 8, in memory. Its contents depend on nothing else.
absl::StatusOr<FileDescriptor> MakeFile(uint64_t bytes);
// Returns the first offset in such a file that differs from `memory`, which is to be its part at
// `offset`. Both lengths are multiples of 8.
std::optional<uint64_t> FirstWrong(absl::Span<const uint8_t> memory, uint64_t offset = 0);

}  // namespace baton::bench

#endif  // TESTS_BENCH_BENCH_FILE_H_
