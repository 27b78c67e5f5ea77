// How the C interface reports statuses of the library.
#ifndef WORKER_KIT_STATUS_CODE_H_
#define WORKER_KIT_STATUS_CODE_H_

#include "absl/status/status.h"
#include "worker/kit/include/baton/baton.h"

namespace baton {

// Returns the code of the same number, or BATON_UNKNOWN if the interface has none.
inline baton_code CodeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return static_cast<baton_code>(code);
    default:
      return BATON_UNKNOWN;
  }
}

}  // namespace baton

#endif  // WORKER_KIT_STATUS_CODE_H_
