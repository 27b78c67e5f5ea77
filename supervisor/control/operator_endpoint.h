// The operator service over TCP: mutual TLS, and who may call what by the names in certificates.
#ifndef SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_
#define SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/control/callers.h"

namespace baton {

// Whether the files are there and fit together. The error names the field, the file and the cure.
absl::Status CheckEndpointFiles(const v1::OperatorEndpoint& endpoint);

// Every call has passed `callers`, which outlives the server. The files are read again within a
// second of a change. Files that are gone or empty change nothing: what was read before stays in
// force. With files that do not fit together nobody new is let in until they are mended.
std::shared_ptr<grpc::ServerCredentials> EndpointCredentials(const v1::OperatorEndpoint& endpoint,
                                                             Callers* callers);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_OPERATOR_ENDPOINT_H_
