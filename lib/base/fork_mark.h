// Tells a process from the children that it forks.
#ifndef LIB_BASE_FORK_MARK_H_
#define LIB_BASE_FORK_MARK_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/base/mapped_memory.h"
#include "lib/base/status.h"

namespace baton {

// A page that a process has written, and that its children get empty from the kernel (madvise(2),
// MADV_WIPEONFORK). A look at it costs a load, where getpid costs a system call.
class ForkMark {
 public:
  static absl::StatusOr<ForkMark> Create() {
    void* const page =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return ErrnoStatus(errno, "mapping a page (see RLIMIT_AS)");
    ForkMark mark;
    mark.page_ = MappedMemory(static_cast<uint8_t*>(page), Unmap{kBytes});
    if (madvise(page, kBytes, MADV_WIPEONFORK) != 0) return ErrnoStatus(errno, "MADV_WIPEONFORK");
    *mark.page_ = 1;
    return mark;
  }
  ForkMark() = default;  // of no process

  // Returns true in the process that created the mark, and false in its children.
  bool IsOurs() const { return *page_ != 0; }

 private:
  static constexpr size_t kBytes = 4096;
  MappedMemory page_;
};

}  // namespace baton

#endif  // LIB_BASE_FORK_MARK_H_
