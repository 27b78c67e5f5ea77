// Where the blocks of a namespace are: a file, a block device, or memory of the service.
#ifndef WORKER_EXAMPLES_NVMED_BACKING_H_
#define WORKER_EXAMPLES_NVMED_BACKING_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::nvmed {

// REQUIRES: byte ranges lie within the backing. Calls return 0 or an errno, and all of their work
// is over when they return. Making a call again has the same result as making it once.
//
// Thread-safe, except for calls with overlapping ranges, which must come one at a time.
class Backing {
 public:
  virtual ~Backing() = default;

  virtual uint64_t bytes() const = 0;
  virtual bool read_only() const = 0;
  // Returns true if calls never take long, so that the serving thread may make them.
  virtual bool prompt() const = 0;
  // Returns true if data have to lie on pages.
  virtual bool direct() const { return false; }
  // Written data is safe only after Flush, or if it was written `through`.
  virtual bool volatile_cache() const = 0;

  virtual int Read(uint64_t offset, absl::Span<uint8_t> data) = 0;
  virtual int Write(uint64_t offset, absl::Span<const uint8_t> data, bool through) = 0;
  virtual int Flush() = 0;
  // `deallocate`: the space need not be kept.
  virtual int WriteZeroes(uint64_t offset, uint64_t length, bool deallocate, bool through) = 0;
  // A hint: space that cannot be given back stays as it is.
  virtual int Deallocate(uint64_t offset, uint64_t length) = 0;

  // The bytes of a backing in memory; nullptr for others.
  virtual uint8_t* memory() { return nullptr; }
};

struct FileOptions {
  std::string path;
  bool direct = false;
  bool read_only = false;
  bool prompt = false;
  uint32_t block_bytes = 512;
};

// Opens a file that has its final size, or a block device. kInvalidArgument: its size, or the
// device's blocks, do not fit the block size. kNotFound, kPermissionDenied and the like: it cannot
// be opened.
absl::StatusOr<std::unique_ptr<Backing>> OpenFile(const FileOptions& options);

// `memory` must outlive the backing.
std::unique_ptr<Backing> MakeMemoryBacking(absl::Span<uint8_t> memory);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_BACKING_H_
