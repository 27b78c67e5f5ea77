// The sockets that control serves. batond makes them and passes them to control. A control that
// batond has not started makes its own.
#ifndef SUPERVISOR_CONFIG_CONTROL_SOCKET_H_
#define SUPERVISOR_CONFIG_CONTROL_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"

namespace baton {

// Variables of control's environment with the numbers of descriptors.
inline constexpr char kBatondVariable[] = "BATON_CONTROL_FD";
inline constexpr char kOperatorSocketVariable[] = "BATON_OPERATOR_SOCKET_FD";
inline constexpr char kWorkerSocketVariable[] = "BATON_WORKER_SOCKET_FD";

// Everybody may connect. Control decides whom to serve by the peer's credentials, or by the
// worker's token.
inline absl::StatusOr<FileDescriptor> ListenForControl(const std::string& path) {
  constexpr int kBacklog = 128;
  constexpr uint32_t kMode = 0666;
  return ListenUnix(path, kBacklog, kMode);
}

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_CONTROL_SOCKET_H_
