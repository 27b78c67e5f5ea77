// Memory of a process's own, mapped and touched: an owner that has much of it takes longer to die.
#ifndef WORKER_EXAMPLES_COMMON_BALLAST_H_
#define WORKER_EXAMPLES_COMMON_BALLAST_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::examples {

// Maps and touches `mebibytes` until the process ends. The pages are small, like those of a service
// that has run for long: the kernel frees huge pages much faster.
inline absl::Status TakeBallast(uint32_t mebibytes) {
  if (mebibytes == 0) return absl::OkStatus();
  const size_t bytes = size_t{mebibytes} << 20;
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED || madvise(base, bytes, MADV_NOHUGEPAGE) != 0 ||
      madvise(base, bytes, MADV_POPULATE_WRITE) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot map ", mebibytes, " MiB of ballast"));
  }
  return absl::OkStatus();
}

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_BALLAST_H_
