#ifndef LIB_NIC_MAPPED_FILE_H_
#define LIB_NIC_MAPPED_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/mapped_memory.h"
#include "lib/nic/limits.h"

namespace baton::nic {

// A client's memfd, mapped as long as anything needs it. It cannot shrink, so every access is
// within it. An access to a hole needs a page, which the machine may not have.
class MappedFile {
 public:
  // Identifies a file.
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const Identity&) const = default;
  };

  // kInvalidArgument: the file is no memfd, is not sealed against shrinking and growing, has huge
  // pages, is empty, or is too long.
  static absl::StatusOr<std::shared_ptr<MappedFile>> Map(int fd,
                                                         uint64_t most_bytes = kMaxFileBytes);
  // kInvalidArgument: it is no memfd.
  static absl::StatusOr<Identity> IdentityOf(int fd);

  MappedFile(MappedMemory memory, const Identity& identity)
      : memory_(std::move(memory)), identity_(identity) {}

  const Identity& identity() const { return identity_; }
  uint64_t size() const { return memory_.get_deleter().bytes; }

  // Returns where [offset, offset + bytes) is. nullptr: it is not within the file, or not aligned.
  uint8_t* At(uint64_t offset, uint64_t bytes, uint64_t alignment) const;

 private:
  const MappedMemory memory_;
  const Identity identity_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_MAPPED_FILE_H_
