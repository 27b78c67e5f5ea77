#include "supervisor/control/operator_endpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "lib/base/status.h"
#include "supervisor/control/grpc_status.h"

namespace baton {
namespace {

constexpr unsigned kRefreshSeconds = 1;

// Lets Callers judge every call.
class NameJudge final : public grpc::AuthMetadataProcessor {
 public:
  explicit NameJudge(const Callers* callers) : callers_(callers) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* certificate,
                       OutputMetadata*, OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const std::string_view method =
        path == metadata.end() ? std::string_view()
                               : std::string_view(path->second.data(), path->second.size());
    return ToGrpc(callers_->Judge(*certificate, method));
  }

 private:
  const Callers* const callers_;
};

std::string PathOf(const FileDescriptor& copy) {
  return absl::StrCat("/proc/self/fd/", copy.get());
}

// Replaces the contents of the copy. Makes the copy if there is none yet.
absl::Status Replace(FileDescriptor& copy, const std::string& text) {
  if (!copy) copy.Reset(memfd_create("operator_endpoint", MFD_CLOEXEC));
  if (!copy) return ErrnoStatus(errno, "memfd_create (see RLIMIT_NOFILE)");
  if (ftruncate(copy.get(), 0) != 0 ||
      pwrite(copy.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, "a copy of operator_endpoint's files");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OperatorEndpointFiles::Read(const v1::OperatorEndpoint& endpoint) {
  BATON_ASSIGN_OR_RETURN(EndpointPem pem, ReadEndpointFiles(endpoint, open_));
  if (pem == pem_) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(CheckIdentity(endpoint, pem));
  BATON_ASSIGN_OR_RETURN(auto trust, CertificateTrust::Make(endpoint, pem));
  BATON_RETURN_IF_ERROR(Replace(client_ca_, pem.client_ca));
  BATON_RETURN_IF_ERROR(Replace(key_, pem.key));
  BATON_RETURN_IF_ERROR(Replace(certificate_, pem.certificate));
  pem_ = std::move(pem);
  callers_->SetTrust(std::move(trust));
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> OperatorEndpointFiles::Credentials() const {
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          PathOf(key_), PathOf(certificate_), PathOf(client_ca_), kRefreshSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  auto credentials = grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<NameJudge>(callers_));
  return credentials;
}

}  // namespace baton
