// Decides which certificates are trusted: those of the authorities in one file, except those that
// the lists in another file revoke.
//
// gRPC's handshake checks the authorities, too. But a connection outlives what was true in its
// handshake. gRPC 1.51 reads revocation lists once (set_crl_directory), and admits every
// certificate whose authority has none.
#ifndef SUPERVISOR_CONTROL_CERTIFICATE_TRUST_H_
#define SUPERVISOR_CONTROL_CERTIFICATE_TRUST_H_

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/control/endpoint_files.h"

namespace baton {

// Immutable, so thread-safe.
class CertificateTrust {
 public:
  // Parses `pem`, the contents of the files of `endpoint`. The error names the field, the file and
  // the cure.
  static absl::StatusOr<std::shared_ptr<const CertificateTrust>> Make(
      const v1::OperatorEndpoint& endpoint, const EndpointPem& pem);
  ~CertificateTrust();

  // Whether this one is good now: in its time, of an authority, on no revocation list. With
  // revocation lists, an authority without a current one has no good certificates. `chain`: what
  // else its owner has shown.
  absl::Status Check(std::string_view certificate, std::string_view chain) const;

 private:
  class Store;
  explicit CertificateTrust(std::unique_ptr<Store> store);

  const std::unique_ptr<Store> store_;
};

// Whether certificate and key are there and fit together.
absl::Status CheckIdentity(const v1::OperatorEndpoint& endpoint, const EndpointPem& pem);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CERTIFICATE_TRUST_H_
