// The whole of control: keepers, the two sockets and their gRPC servers.
#ifndef SUPERVISOR_CONTROL_CONTROL_SERVER_H_
#define SUPERVISOR_CONTROL_CONTROL_SERVER_H_

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton {

// The descriptors that batond gave control at its start. All are empty if batond did not start it.
struct FromBatond {
  FileDescriptor link;             // BatondLink
  FileDescriptor operator_socket;  // both listen already
  FileDescriptor worker_socket;
  FileDescriptor lock;  // control's; empty: control ends with batond
  FileDescriptor stay;  // kStayVariable
};

class ControlServer {
 public:
  // The server serves once Start returns. kAlreadyExists: another control serves in this state_dir.
  // A worker's stream without a first message is ended after `hello_timeout`.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const internal::ControlConfig& config,
      std::chrono::milliseconds hello_timeout = std::chrono::seconds(10),
      FromBatond from_batond = FromBatond());
  // Ends every call and stream, within a second.
  ~ControlServer();

  // The port of operator_endpoint; 0 if there is no endpoint.
  int operator_port() const;
  // Returns why the endpoint is not served yet. OK: it is served, or none is configured.
  absl::Status operator_endpoint_status() const;

 private:
  class Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CONTROL_SERVER_H_
