#include "lib/nic/mapped_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::nic {

// Asks for the seals first, because fstat of a file that is no memfd can wait for a file system
// that does not answer.
absl::StatusOr<MappedFile::Identity> MappedFile::IdentityOf(int fd) {
  if (fcntl(fd, F_GET_SEALS) < 0) return absl::InvalidArgumentError("file: no memfd");
  struct stat status = {};
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "fstat of the file that was passed");
  return Identity{status.st_dev, status.st_ino};
}

absl::StatusOr<std::shared_ptr<MappedFile>> MappedFile::Map(int fd, uint64_t most_bytes) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return absl::InvalidArgumentError("file: no memfd");
  if ((seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        "file: add F_SEAL_SHRINK and F_SEAL_GROW before it is passed");
  }
  // Touching a huge page that is not there kills the process if the machine has none left.
  struct statfs system = {};
  if (fstatfs(fd, &system) != 0) return ErrnoStatus(errno, "fstatfs of the file that was passed");
  if (system.f_type == HUGETLBFS_MAGIC) {
    return absl::InvalidArgumentError("file: pass one without huge pages");
  }
  // Asks for the size only now, because a sealed file keeps its size.
  struct stat status = {};
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "fstat of the file that was passed");
  const uint64_t size = static_cast<uint64_t>(status.st_size);
  if (size == 0 || size > most_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("file: ", size, " bytes, not 1 to ", most_bytes));
  }
  void* const begin = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (begin == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mapping ", size, " bytes of the file that was passed"));
  }
  // A client's memory must be in no child of the NIC and in no core dump. Both calls fail only for
  // memory that is not mapped.
  madvise(begin, size, MADV_DONTFORK);
  madvise(begin, size, MADV_DONTDUMP);
  return std::make_shared<MappedFile>(MappedMemory(static_cast<uint8_t*>(begin), Unmap{size}),
                                      Identity{status.st_dev, status.st_ino});
}

uint8_t* MappedFile::At(uint64_t offset, uint64_t bytes, uint64_t alignment) const {
  if (offset > size() || bytes > size() - offset || offset % alignment != 0) return nullptr;
  return memory_.get() + offset;
}

}  // namespace baton::nic
