// The sockets that control serves, whoever makes them: batond, which hands them to it, or a control
// that nobody has started.
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

// Everybody may connect: whom to serve is judged by who connects, or by his token.
inline absl::StatusOr<FileDescriptor> ListenForControl(const std::string& path) {
  constexpr int kBacklog = 128;
  constexpr uint32_t kMode = 0666;
  return ListenUnix(path, kBacklog, kMode);
}

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_CONTROL_SOCKET_H_
