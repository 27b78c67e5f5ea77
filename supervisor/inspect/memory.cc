#include "supervisor/inspect/memory.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"

namespace baton::inspect {

absl::Status Memory::Read(uint64_t at, void* to, size_t bytes) const {
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
