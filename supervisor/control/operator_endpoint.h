// The operator service over TCP: mutual TLS, and who may call what by the names in certificates.
#ifndef SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_
#define SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/control/callers.h"
#include "supervisor/control/certificates.h"

namespace baton {

// The files of operator_endpoint that are in force: the last ones that were all there and fit
// together. Thread-compatible.
class OperatorEndpointFiles {
 public:
  // `callers`, whose certificates are judged by them, outlives it.
  OperatorEndpointFiles(FileOpener open, Callers* callers)
      : open_(std::move(open)), callers_(callers) {}

  // Reads them again. After an error what was read before stays in force; there is nothing in force
  // before the first success.
  absl::Status Read(const v1::OperatorEndpoint& endpoint);

  // After Read has been successful. Every call has passed `callers`. gRPC takes what Read finds
  // later within a second.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;

 private:
  const FileOpener open_;
  Callers* const callers_;
  // Copies without a name, which gRPC is given in the place of the configured files: it may read
  // these whoever it is, and it never sees any that do not fit together.
  FileDescriptor certificate_, key_, client_ca_;
  std::optional<EndpointPem> pem_;  // none: nothing is in force
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_
