// The operator service over TCP, with mutual TLS. The names in a certificate decide what its owner
// may call.
#ifndef SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_
#define SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "grpcpp/security/server_credentials.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/control/callers.h"
#include "supervisor/control/certificates.h"

namespace baton {

// The files of operator_endpoint that are in force: the last complete set that fits together.
// Thread-compatible.
class OperatorEndpointFiles {
 public:
  // `callers` judges certificates by these files, and must outlive the object.
  OperatorEndpointFiles(FileOpener open, Callers* callers)
      : open_(std::move(open)), callers_(callers) {}

  // Reads the files again. After an error the former ones stay in force. Before the first success
  // none are in force.
  absl::Status Read(const v1::OperatorEndpoint& endpoint);

  // REQUIRES: Read has succeeded. Every call is judged by `callers` first. gRPC takes files that
  // Read finds later within a second.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;

 private:
  const FileOpener open_;
  Callers* const callers_;
  // Copies without a name, which gRPC reads instead of the configured files. Control's user can
  // always read them, and gRPC never sees files that do not fit together.
  FileDescriptor certificate_, key_, client_ca_;
  std::optional<EndpointPem> pem_;  // none: nothing is in force
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_
