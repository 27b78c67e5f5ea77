#ifndef SUPERVISOR_BATOND_OPEN_WITHIN_H_
#define SUPERVISOR_BATOND_OPEN_WITHIN_H_

#include <sys/types.h>

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// Short, because batond does nothing else while it waits.
inline constexpr std::chrono::milliseconds kOpenTimeout(500);

// Opens a regular file as open(2) does with `flags`, O_CLOEXEC and `mode`. Never waits for anything
// else at `path`. kFailedPrecondition: `path` is no regular file. kDeadlineExceeded: the file
// system has not answered within `timeout`. open(2) would wait for ever, so a child process opens
// the file, and is then killed. While such a child has not died, OpenWithin refuses `path` at once
// (left_behind.h).
//
// REQUIRES: the process is single-threaded.
absl::StatusOr<FileDescriptor> OpenWithin(const std::string& path, int flags, mode_t mode = 0,
                                          std::chrono::milliseconds timeout = kOpenTimeout);

// Opens what ServiceConfig.log names, for writing: "journal", or the path of a regular file, to
// which it appends, and which it makes if it is missing. Waits for it as OpenWithin does.
absl::StatusOr<FileDescriptor> OpenServiceLog(const std::string& log, const std::string& service);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_OPEN_WITHIN_H_
