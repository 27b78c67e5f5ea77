#include "supervisor/control/operator_endpoint.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton {
namespace {

constexpr unsigned kRefreshSeconds = 1;

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

std::string FieldAndFile(const char* field, const std::string& path) {
  return absl::StrCat("operator_endpoint.", field, ": ", path);
}

absl::StatusOr<File> Open(const char* field, const std::string& path) {
  File file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file) return file;
  const absl::Status why = ErrnoStatus(errno, FieldAndFile(field, path));
  return absl::Status(why.code(), absl::StrCat(why.message(),
                                               "; put the file there, readable for "
                                               "batond's user, or mend the path"));
}

absl::Status Unfit(const char* field, const std::string& path, std::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat(FieldAndFile(field, path), ": ", std::string(what)));
}

absl::StatusOr<Certificate> ReadCertificate(const char* field, const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const File file, Open(field, path));
  Certificate certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr), &X509_free);
  if (!certificate) return Unfit(field, path, "has no certificate in PEM; name a file that has");
  return certificate;
}

absl::StatusOr<Key> ReadKey(const char* field, const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const File file, Open(field, path));
  // Without a callback OpenSSL would ask a terminal for a passphrase.
  const auto none = [](char*, int, int, void*) { return 0; };
  Key key(PEM_read_PrivateKey(file.get(), nullptr, none, nullptr), &EVP_PKEY_free);
  if (!key) return Unfit(field, path, "has no private key in PEM without a passphrase");
  return key;
}

// Judges every call, whatever its method.
class NameJudge final : public grpc::AuthMetadataProcessor {
 public:
  explicit NameJudge(Callers* callers) : callers_(callers) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* certificate,
                       OutputMetadata*, OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const std::string_view method =
        path == metadata.end() ? std::string_view()
                               : std::string_view(path->second.data(), path->second.size());
    const NamedRole caller = callers_->RoleOfCertificate(*certificate);
    if (MayCall(caller.role, method)) return grpc::Status::OK;
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, callers_->Refuse(caller, method));
  }

 private:
  Callers* const callers_;
};

}  // namespace

absl::Status CheckEndpointFiles(const v1::OperatorEndpoint& endpoint) {
  BATON_ASSIGN_OR_RETURN(const Certificate certificate,
                         ReadCertificate("certificate_file", endpoint.certificate_file()));
  BATON_ASSIGN_OR_RETURN(const Key key, ReadKey("key_file", endpoint.key_file()));
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Unfit("key_file", endpoint.key_file(),
                 absl::StrCat("is not the key of the first certificate in ",
                              endpoint.certificate_file(), "; name the two that belong together"));
  }
  return ReadCertificate("client_ca_file", endpoint.client_ca_file()).status();
}

std::shared_ptr<grpc::ServerCredentials> EndpointCredentials(const v1::OperatorEndpoint& endpoint,
                                                             Callers* callers) {
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          endpoint.key_file(), endpoint.certificate_file(), endpoint.client_ca_file(),
          kRefreshSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  auto credentials = grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<NameJudge>(callers));
  return credentials;
}

}  // namespace baton
