#ifndef SUPERVISOR_BATOND_SERVICE_LOG_H_
#define SUPERVISOR_BATOND_SERVICE_LOG_H_

#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// Opens what ServiceConfig.log names, for writing: "journal", or the path of a regular file, which
// is appended to and made when missing. Waits for it as OpenWithin does.
absl::StatusOr<FileDescriptor> OpenServiceLog(const std::string& log, const std::string& service);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_SERVICE_LOG_H_
