#include "worker/examples/nvmed/backing.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"

namespace baton::nvmed {
namespace {

// Zeroes to write if a file system cannot make them; aligned for direct I/O.
constexpr size_t kZeroBytes = 65536;
alignas(4096) constexpr std::array<uint8_t, kZeroBytes> kZeroes = {};

// The largest alignment that direct I/O requires. Data with less alignment are copied through an
// aligned buffer.
constexpr size_t kDirectAlignment = 4096;
constexpr size_t kBounceBytes = 65536;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<uint8_t, Free>;

AlignedMemory AllocateAligned(size_t bytes) {
  const size_t pages = (bytes + kDirectAlignment - 1) / kDirectAlignment;
  return AlignedMemory(
      static_cast<uint8_t*>(std::aligned_alloc(kDirectAlignment, pages * kDirectAlignment)));
}

class BackingInFile final : public Backing {
 public:
  BackingInFile(FileDescriptor file, uint64_t bytes, const FileOptions& options)
      : file_(std::move(file)), bytes_(bytes), options_(options) {}

  uint64_t bytes() const override { return bytes_; }
  bool read_only() const override { return options_.read_only; }
  bool prompt() const override { return options_.prompt; }
  bool direct() const override { return options_.direct; }
  bool volatile_cache() const override { return true; }

  int Read(uint64_t offset, absl::Span<uint8_t> data) override {
    if (Takes(data.data())) return ReadInto(offset, data);
    const AlignedMemory bounce = AllocateAligned(std::min(data.size(), kBounceBytes));
    if (bounce == nullptr) return ENOMEM;
    while (!data.empty()) {
      const size_t now = std::min(data.size(), kBounceBytes);
      const int error = ReadInto(offset, {bounce.get(), now});
      if (error != 0) return error;
      std::memcpy(data.data(), bounce.get(), now);
      data.remove_prefix(now);
      offset += now;
    }
    return 0;
  }

  int Write(uint64_t offset, absl::Span<const uint8_t> data, bool through) override {
    if (Takes(data.data())) return WriteFrom(offset, data, through);
    const AlignedMemory bounce = AllocateAligned(std::min(data.size(), kBounceBytes));
    if (bounce == nullptr) return ENOMEM;
    while (!data.empty()) {
      const size_t now = std::min(data.size(), kBounceBytes);
      std::memcpy(bounce.get(), data.data(), now);
      const int error = WriteFrom(offset, {bounce.get(), now}, through);
      if (error != 0) return error;
      data.remove_prefix(now);
      offset += now;
    }
    return 0;
  }

  int Flush() override { return fdatasync(file_.get()) == 0 ? 0 : errno; }

  int WriteZeroes(uint64_t offset, uint64_t length, bool deallocate, bool through) override {
    int error = deallocate ? Allocate(FALLOC_FL_PUNCH_HOLE, offset, length)
                           : Allocate(FALLOC_FL_ZERO_RANGE, offset, length);
    if (error == EOPNOTSUPP) error = WriteAllZeroes(offset, length);
    return error == 0 && through ? Flush() : error;
  }

  int Deallocate(uint64_t offset, uint64_t length) override {
    const int error = Allocate(FALLOC_FL_PUNCH_HOLE, offset, length);
    return error == EOPNOTSUPP ? 0 : error;
  }

 private:
  bool Takes(const uint8_t* memory) const {
    return !options_.direct || reinterpret_cast<uintptr_t>(memory) % kDirectAlignment == 0;
  }

  int ReadInto(uint64_t offset, absl::Span<uint8_t> data) {
    while (!data.empty()) {
      const ssize_t done = pread(file_.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return errno;
      if (done == 0) return EIO;  // the file has become shorter
      data.remove_prefix(static_cast<size_t>(done));
      offset += static_cast<uint64_t>(done);
    }
    return 0;
  }

  int WriteFrom(uint64_t offset, absl::Span<const uint8_t> data, bool through) {
    while (!data.empty()) {
      iovec vector = {const_cast<uint8_t*>(data.data()), data.size()};
      const ssize_t done =
          pwritev2(file_.get(), &vector, 1, static_cast<off_t>(offset), through ? RWF_DSYNC : 0);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return errno;
      if (done == 0) return EIO;
      data.remove_prefix(static_cast<size_t>(done));
      offset += static_cast<uint64_t>(done);
    }
    return 0;
  }

  int Allocate(int mode, uint64_t offset, uint64_t length) {
    int result;
    do {
      result = fallocate(file_.get(), mode | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                         static_cast<off_t>(length));
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
  }

  int WriteAllZeroes(uint64_t offset, uint64_t length) {
    while (length > 0) {
      const size_t now = std::min<uint64_t>(length, kZeroes.size());
      const int error = Write(offset, {kZeroes.data(), now}, false);
      if (error != 0) return error;
      offset += now;
      length -= now;
    }
    return 0;
  }

  const FileDescriptor file_;
  const uint64_t bytes_;
  const FileOptions options_;
};

class BackingInMemory final : public Backing {
 public:
  explicit BackingInMemory(absl::Span<uint8_t> memory) : memory_(memory) {}

  uint64_t bytes() const override { return memory_.size(); }
  bool read_only() const override { return false; }
  bool prompt() const override { return true; }
  bool volatile_cache() const override { return false; }

  int Read(uint64_t offset, absl::Span<uint8_t> data) override {
    std::memcpy(data.data(), memory_.data() + offset, data.size());
    return 0;
  }
  int Write(uint64_t offset, absl::Span<const uint8_t> data, bool) override {
    std::memcpy(memory_.data() + offset, data.data(), data.size());
    return 0;
  }
  int Flush() override { return 0; }
  int WriteZeroes(uint64_t offset, uint64_t length, bool, bool) override {
    std::memset(memory_.data() + offset, 0, length);
    return 0;
  }
  int Deallocate(uint64_t offset, uint64_t length) override {
    return WriteZeroes(offset, length, true, false);
  }
  uint8_t* memory() override { return memory_.data(); }

 private:
  const absl::Span<uint8_t> memory_;
};

absl::Status CheckKind(const struct stat& status, const FileOptions& options) {
  if (S_ISREG(status.st_mode) || S_ISBLK(status.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("path ", options.path, ": neither a file nor a block device"));
}

absl::StatusOr<uint64_t> SizeOf(int file, const FileOptions& options) {
  struct stat status = {};
  if (fstat(file, &status) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", options.path));
  BATON_RETURN_IF_ERROR(CheckKind(status, options));
  uint64_t bytes = static_cast<uint64_t>(status.st_size);
  if (S_ISBLK(status.st_mode)) {
    if (ioctl(file, BLKGETSIZE64, &bytes) != 0) {
      return ErrnoStatus(errno, absl::StrCat("size of ", options.path));
    }
    int device_blocks = 0;
    if (ioctl(file, BLKSSZGET, &device_blocks) != 0) {
      return ErrnoStatus(errno, absl::StrCat("block size of ", options.path));
    }
    if (static_cast<uint32_t>(device_blocks) > options.block_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("block_bytes ", options.block_bytes,
                                                     ": the blocks of ", options.path,
                                                     " are larger: set it to ", device_blocks));
    }
  }
  if (bytes == 0 || bytes % options.block_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("path ", options.path, ": has ", bytes,
                                                   " bytes, not a multiple of block_bytes, ",
                                                   options.block_bytes));
  }
  return bytes;
}

// Checks that the file takes direct I/O in blocks of the namespace.
absl::Status CheckDirect(int file, const FileOptions& options) {
  const AlignedMemory block = AllocateAligned(options.block_bytes);
  if (block == nullptr) return absl::ResourceExhaustedError("no memory");
  const ssize_t done = pread(file, block.get(), options.block_bytes, 0);
  const int error = errno;
  if (done >= 0) return absl::OkStatus();
  if (error == EINVAL) {
    return absl::InvalidArgumentError(
        absl::StrCat("direct: ", options.path, " does not read ", options.block_bytes,
                     " bytes past the page cache: raise block_bytes, or leave direct out"));
  }
  return ErrnoStatus(error, absl::StrCat("read ", options.path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backing>> OpenFile(const FileOptions& options) {
  // Checked before it is opened, because opening a pipe would wait for its other end.
  struct stat status = {};
  if (stat(options.path.c_str(), &status) != 0) {
    return ErrnoStatus(errno, absl::StrCat("open ", options.path));
  }
  BATON_RETURN_IF_ERROR(CheckKind(status, options));
  const int flags = (options.read_only ? O_RDONLY : O_RDWR) | (options.direct ? O_DIRECT : 0);
  FileDescriptor file(open(options.path.c_str(), flags | O_CLOEXEC));
  if (!file && errno == EINVAL && options.direct) {
    return absl::InvalidArgumentError(absl::StrCat(
        "direct: ", options.path, " cannot be opened past the page cache: leave direct out"));
  }
  if (!file) return ErrnoStatus(errno, absl::StrCat("open ", options.path));
  BATON_ASSIGN_OR_RETURN(const uint64_t bytes, SizeOf(file.get(), options));
  if (options.direct) BATON_RETURN_IF_ERROR(CheckDirect(file.get(), options));
  return std::make_unique<BackingInFile>(std::move(file), bytes, options);
}

std::unique_ptr<Backing> MakeMemoryBacking(absl::Span<uint8_t> memory) {
  return std::make_unique<BackingInMemory>(memory);
}

}  // namespace baton::nvmed
