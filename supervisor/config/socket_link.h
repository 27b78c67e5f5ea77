// Second names of a service's sockets, and where they are.
#ifndef SUPERVISOR_CONFIG_SOCKET_LINK_H_
#define SUPERVISOR_CONFIG_SOCKET_LINK_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// A directory of `service` in the state directory, for a container that is given this and nothing
// else of that: links to the socket that its workers attach at and to control's for their gRPC
// streams, made anew with the sockets, while the directory stays. No path is longer than
// ManagementSocketPath().
inline std::string ServiceDirectoryPath(std::string_view state_dir, std::string_view service) {
  return std::string(state_dir) + "/" + std::string(service);
}
inline std::string LinkedWorkerSocketPath(std::string_view state_dir, std::string_view service) {
  return ServiceDirectoryPath(state_dir, service) + "/worker.sock";
}
inline std::string LinkedControlSocketPath(std::string_view state_dir, std::string_view service) {
  return ServiceDirectoryPath(state_dir, service) + "/stream.sock";
}

// Gives `socket`, which is bound, the name `link` as well, in the place of what had it. Makes the
// directory of `link`, which everybody may pass and nobody but us may write, if it is missing.
// kAlreadyExists: something else has its name.
absl::Status LinkSocket(const std::string& socket, const std::string& link);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_SOCKET_LINK_H_
