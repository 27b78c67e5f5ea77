#ifndef LIB_BASE_ERRNO_STATUS_H_
#define LIB_BASE_ERRNO_STATUS_H_

#include <string_view>

#include "absl/status/status.h"

namespace baton {

// Returns the status that fits `error_number`, with the text "what: strerror (errno N)".
absl::Status ErrnoStatus(int error_number, std::string_view what);

}  // namespace baton

#endif  // LIB_BASE_ERRNO_STATUS_H_
