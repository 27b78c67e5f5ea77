#ifndef SUPERVISOR_BATOND_OPEN_WITHIN_H_
#define SUPERVISOR_BATOND_OPEN_WITHIN_H_

#include <sys/types.h>

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// batond does nothing else while it waits.
inline constexpr std::chrono::milliseconds kOpenTimeout(500);

// Opens a regular file as open(2) does with `flags`, and O_CLOEXEC, and `mode`. Anything else at
// `path` is refused with kFailedPrecondition, and never waited for. kDeadlineExceeded: the file
// system has not answered within `timeout`. open(2) waits for it for ever, so a process of its own
// opens the file, and is killed then. As long as that one does not die of it, `path` is refused at
// once (left_behind.h).
//
// Only from a single-threaded process.
absl::StatusOr<FileDescriptor> OpenWithin(const std::string& path, int flags, mode_t mode = 0,
                                          std::chrono::milliseconds timeout = kOpenTimeout);

// Opens what ServiceConfig.log names, for writing: "journal", or the path of a regular file, which
// is appended to and made when missing. Waits for it as OpenWithin does.
absl::StatusOr<FileDescriptor> OpenServiceLog(const std::string& log, const std::string& service);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_OPEN_WITHIN_H_
