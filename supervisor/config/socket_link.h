// Second names of a service's sockets.
#ifndef SUPERVISOR_CONFIG_SOCKET_LINK_H_
#define SUPERVISOR_CONFIG_SOCKET_LINK_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// Returns the directory of `service` in the state directory, for a container that gets this
// directory only. It has links to the socket at which workers attach and to control's socket for
// their gRPC streams. The links are made anew with the sockets; the directory stays. No path is
// longer than ManagementSocketPath().
inline std::string ServiceDirectoryPath(std::string_view state_dir, std::string_view service) {
  return std::string(state_dir) + "/" + std::string(service);
}
inline std::string LinkedWorkerSocketPath(std::string_view state_dir, std::string_view service) {
  return ServiceDirectoryPath(state_dir, service) + "/worker.sock";
}
inline std::string LinkedControlSocketPath(std::string_view state_dir, std::string_view service) {
  return ServiceDirectoryPath(state_dir, service) + "/stream.sock";
}

// Gives `socket`, which is bound, the second name `link`, and replaces what had that name. Makes
// the directory of `link` if it is missing: everybody may pass it, and only this user may write.
// kAlreadyExists: something else has the directory's name.
absl::Status LinkSocket(const std::string& socket, const std::string& link);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_SOCKET_LINK_H_
