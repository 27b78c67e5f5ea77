// Memory of another process, or of a file, for reading only. Each look is a copy (pread). So there
// is no mapping that could disturb the other process, no missing page is made, and the bytes that
// were checked are the bytes that are used.
#ifndef SUPERVISOR_INSPECT_MEMORY_H_
#define SUPERVISOR_INSPECT_MEMORY_H_

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"

namespace baton::inspect {

// Thread-safe. Copies share the descriptor.
class Memory {
 public:
  Memory() = default;
  // `size` bytes from `offset` of `file`, which must be open for reading. `name`: for messages.
  Memory(std::shared_ptr<FileDescriptor> file, uint64_t offset, uint64_t size, std::string name)
      : file_(std::move(file)), offset_(offset), size_(size), name_(std::move(name)) {}

  bool exists() const { return file_ != nullptr; }
  uint64_t size() const { return size_; }
  const std::string& name() const { return name_; }
  int fd() const { return file_->get(); }

  // kOutOfRange: `size` is less, or the file is shorter.
  absl::Status Read(uint64_t at, void* to, size_t bytes) const;

  template <typename T>
  absl::StatusOr<T> Read(uint64_t at) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T copy;
    BATON_RETURN_IF_ERROR(Read(at, &copy, sizeof(T)));
    return copy;
  }

  // ReadStill reads a value that another process may be writing. It repeats the read until two
  // reads are equal, at most kMostLooks times.
  template <typename T>
  struct Look {
    T value;
    bool changing;  // no two reads were equal: parts of `value` may be of different moments
  };
  static constexpr int kMostLooks = 8;
  template <typename T>
  absl::StatusOr<Look<T>> ReadStill(uint64_t at) const {
    BATON_ASSIGN_OR_RETURN(T last, Read<T>(at));
    for (int look = 1; look < kMostLooks; ++look) {
      BATON_ASSIGN_OR_RETURN(const T next, Read<T>(at));
      if (std::memcmp(&last, &next, sizeof(T)) == 0) return Look<T>{next, false};
      last = next;
    }
    return Look<T>{last, true};
  }

 private:
  std::shared_ptr<FileDescriptor> file_;
  uint64_t offset_ = 0;
  uint64_t size_ = 0;
  std::string name_;
};

// An arena's memories, and where they were found.
struct ArenaFiles {
  std::array<Memory, arena::kMemoryNames.size()> memories;  // by arena::MemoryKind
  const Memory& worker_log() const { return memories[arena::kWorkerLogMemory]; }
  const Memory& driver_log() const { return memories[arena::kDriverLogMemory]; }
  const Memory& recovery() const { return memories[arena::kRecoveryMemory]; }  // may be missing
  const Memory& buffers() const { return memories[arena::kBuffersMemory]; }    // may be missing

  // The process that has, or had, the memories open.
  int pid = 0;
  std::string program;
  // The fields of an arena that was saved to a file.
  std::string file;
  std::string release;
  std::string decoder;
  int64_t saved_unix_micros = 0;
  uint64_t saved_monotonic_ns = 0;
};

inline absl::Status Memory::Read(uint64_t at, void* to, size_t bytes) const {
  if (at > size_ || bytes > size_ - at) {
    return absl::OutOfRangeError(absl::StrCat("the ", name_, " ends at ", size_, ": ", bytes,
                                              " bytes at ", at, " are not in it"));
  }
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(file_->get(), static_cast<uint8_t*>(to) + done, bytes - done,
                              static_cast<off_t>(offset_ + at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("reading the ", name_));
    if (got == 0) {
      return absl::OutOfRangeError(absl::StrCat("the ", name_, " ends before its ", size_,
                                                " bytes: ", bytes, " at ", at, " are not there"));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_MEMORY_H_
