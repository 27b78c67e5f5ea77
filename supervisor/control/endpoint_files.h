// Reads the files of operator_endpoint, and makes copies of them for gRPC, which reads files
// itself.
//
// Thread-compatible.
#ifndef SUPERVISOR_CONTROL_ENDPOINT_FILES_H_
#define SUPERVISOR_CONTROL_ENDPOINT_FILES_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

struct EndpointPem {
  std::string certificate;
  std::string key;
  std::string client_ca;
  std::optional<std::string> crl;  // none: the configuration names none

  friend bool operator==(const EndpointPem&, const EndpointPem&) = default;
};

// A file for reading; opening it does not wait, whatever it is.
using FileOpener = std::function<absl::StatusOr<FileDescriptor>(const std::string& path)>;
absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path);

// All of them. The error names the field, the file and the cure.
absl::StatusOr<EndpointPem> ReadEndpointFiles(const v1::OperatorEndpoint& endpoint,
                                              const FileOpener& open);

// Files without a name, that gRPC is given in the place of the configured ones: it may read these
// whoever it is, and it never sees any that do not fit together.
class EndpointCopies {
 public:
  static absl::StatusOr<EndpointCopies> Make();

  absl::Status Write(const EndpointPem& pem);

  std::string certificate_path() const { return PathOf(certificate_); }
  std::string key_path() const { return PathOf(key_); }
  std::string client_ca_path() const { return PathOf(client_ca_); }

 private:
  EndpointCopies() = default;
  static std::string PathOf(const FileDescriptor& file);

  FileDescriptor certificate_;
  FileDescriptor key_;
  FileDescriptor client_ca_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_ENDPOINT_FILES_H_
