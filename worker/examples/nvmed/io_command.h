// Translates an I/O command to work on its namespace's backing, and executes it.
#ifndef WORKER_EXAMPLES_NVMED_IO_COMMAND_H_
#define WORKER_EXAMPLES_NVMED_IO_COMMAND_H_

#include <cstdint>

#include "absl/types/span.h"
#include "worker/examples/nvmed/nvme_spec.h"
#include "worker/examples/nvmed/target.h"

namespace baton::nvmed {

struct IoWork {
  enum class Kind : uint8_t { kRead, kWrite, kFlush, kWriteZeroes, kDeallocate };
  Kind kind = Kind::kFlush;
  bool through = false;     // FUA
  bool deallocate = false;  // kWriteZeroes: the space need not be kept
  uint32_t ranges = 0;      // kDeallocate: in the command's data
  uint64_t offset = 0;      // bytes, within the namespace
  uint64_t bytes = 0;
  Namespace* space = nullptr;

  bool writes() const { return kind != Kind::kRead && kind != Kind::kFlush; }
};

// Returns whether both are writes, to the same blocks. A Dataset Management overlaps all writes,
// because its ranges are in its data.
bool IsOverlap(const IoWork& one, const IoWork& other);

// Limits of a Dataset Management on a prompt backing, because it runs on the serving thread: ranges
// (DMRL), blocks of each (DMRSL) and of all (DMSL).
inline constexpr uint8_t kPromptRanges = 16;
inline constexpr uint32_t kPromptRangeBlocks = 4096;
inline constexpr uint64_t kPromptBlocks = uint64_t{kPromptRanges} * kPromptRangeBlocks;

// Checks all of the command but its data. With kSuccess `*work` becomes what the command asks for.
StatusCode MakeWork(const SubmissionEntry& command, Subsystem& subsystem, IoWork* work);

// Executes the work. `data`: the data to read into or to write, or the ranges; as long as the
// command says (kInternalError: it is shorter). Executing it again has the same result. Any thread.
StatusCode Run(const IoWork& work, absl::Span<uint8_t> data);

// Returns whether the same command would fail again (DNR).
bool IsLasting(StatusCode status);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_IO_COMMAND_H_
