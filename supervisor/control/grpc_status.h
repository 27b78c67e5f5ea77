#ifndef SUPERVISOR_CONTROL_GRPC_STATUS_H_
#define SUPERVISOR_CONTROL_GRPC_STATUS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "lib/arena/layout.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"
#include "lib/base/version.h"
#include "proto/baton/v1/types.pb.h"

namespace baton {

// gRPC writes up to three bytes for each byte of a message, and accepts no header of more than 8
// KiB.
inline constexpr size_t kMaxStatusBytes = 2048;

// Codes of Abseil and gRPC are the same numbers.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      ValidUtf8(MessageOf(status), kMaxStatusBytes));
}

inline void FillVersion(v1::Version* version) {
  version->set_release(kRelease);
  version->set_layout_version(arena::kLayoutVersion);
  version->set_protocol_version(kProtocolVersion);
}

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_GRPC_STATUS_H_
