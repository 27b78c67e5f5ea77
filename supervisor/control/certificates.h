// The files of operator_endpoint, and what their certificates say.
#ifndef SUPERVISOR_CONTROL_CERTIFICATES_H_
#define SUPERVISOR_CONTROL_CERTIFICATES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/config.pb.h"

struct x509_store_st;  // OpenSSL's X509_STORE

namespace baton {

struct EndpointPem {
  std::string certificate;
  std::string key;
  std::string client_ca;
  std::optional<std::string> crl;  // none: the configuration names none

  friend bool operator==(const EndpointPem&, const EndpointPem&) = default;
};

// Opens a file for reading. Does not wait, whatever the file is.
using FileOpener = std::function<absl::StatusOr<FileDescriptor>(const std::string& path)>;
absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path);

// Reads all of them. An error names the field, the file and the cure.
absl::StatusOr<EndpointPem> ReadEndpointFiles(const v1::OperatorEndpoint& endpoint,
                                              const FileOpener& open);

// Decides which certificates are trusted: those of the authorities in one file, except those that
// the lists in another file revoke.
//
// gRPC's handshake checks the authorities, too. But trust may change after a connection's
// handshake, gRPC 1.51 reads revocation lists only once (set_crl_directory), and it admits every
// certificate whose authority has none.
//
// Immutable, so thread-safe.
class CertificateTrust {
 public:
  // Parses `pem`, the contents of the files of `endpoint`. An error names the field, the file and
  // the cure.
  static absl::StatusOr<std::shared_ptr<const CertificateTrust>> Make(
      const v1::OperatorEndpoint& endpoint, const EndpointPem& pem);

  // Returns OK if `certificate` is valid now: within its time, signed by an authority, and on no
  // revocation list. If there are revocation lists, no certificate of an authority without a
  // current one is valid. `chain`: the other certificates that its owner has sent.
  absl::Status Check(std::string_view certificate, std::string_view chain) const;

 private:
  explicit CertificateTrust(std::shared_ptr<x509_store_st> store) : store_(std::move(store)) {}

  const std::shared_ptr<x509_store_st> store_;
};

// Checks that certificate and key are there and fit together.
absl::Status CheckIdentity(const v1::OperatorEndpoint& endpoint, const EndpointPem& pem);

// Returns when the first of the certificates in a PEM file expires, in seconds since 1970; nothing
// if the file cannot be read or has none.
std::optional<int64_t> CertificateExpiry(FileDescriptor file);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CERTIFICATES_H_
