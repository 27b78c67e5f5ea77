#include "supervisor/control/certificates.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/status.h"

namespace baton {
namespace {

constexpr size_t kMaxFileBytes = 16 << 20;
constexpr size_t kReadBytes = 65536;

absl::StatusOr<std::string> ReadWhole(int file) {
  std::string text;
  for (;;) {
    const size_t before = text.size();
    if (before > kMaxFileBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("is longer than ", kMaxFileBytes, " bytes; name another file"));
    }
    text.resize(before + kReadBytes);
    const ssize_t got = read(file, text.data() + before, kReadBytes);
    text.resize(before + static_cast<size_t>(got > 0 ? got : 0));
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) return ErrnoStatus(errno, "read");
  }
}

absl::Status Read(const char* field, const std::string& path, const FileOpener& open,
                  std::string* text) {
  const absl::StatusOr<FileDescriptor> file = open(path);
  absl::StatusOr<std::string> read =
      file.ok() ? ReadWhole(file->get()) : absl::StatusOr<std::string>(file.status());
  if (read.ok()) {
    *text = *std::move(read);
    return absl::OkStatus();
  }
  return absl::Status(
      read.status().code(),
      absl::StrCat("operator_endpoint.", field, ": ", path, ": ", read.status().message(),
                   "; put the file there, readable for batond's user, or mend the path"));
}

template <auto free>
struct Free {
  template <typename Type>
  void operator()(Type* object) const {
    free(object);
  }
};
void FreeCertificates(STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); }
void FreeInfos(STACK_OF(X509_INFO) * stack) { sk_X509_INFO_pop_free(stack, X509_INFO_free); }

using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Certificates = std::unique_ptr<STACK_OF(X509), Free<FreeCertificates>>;
using Context = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
using Infos = std::unique_ptr<STACK_OF(X509_INFO), Free<FreeInfos>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

Bio Reading(std::string_view pem) {
  Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  BATON_CHECK(bio != nullptr);
  return bio;
}

Certificate FirstCertificate(std::string_view pem) {
  Certificate certificate(PEM_read_bio_X509(Reading(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

Certificates AllCertificates(std::string_view pem) {
  Certificates all(sk_X509_new_null());
  const Bio bio = Reading(pem);
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    if (sk_X509_push(all.get(), one) == 0) X509_free(one);
  }
  ERR_clear_error();  // the end of the text counts as an error
  return all;
}

Key PrivateKey(std::string_view pem) {
  // Without a callback OpenSSL would ask a terminal for a passphrase.
  const auto none = [](char*, int, int, void*) { return 0; };
  Key key(PEM_read_bio_PrivateKey(Reading(pem).get(), nullptr, none, nullptr));
  ERR_clear_error();
  return key;
}

absl::Status Unfit(const char* field, const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("operator_endpoint.", field, ": ", path, ": ", std::string(what)));
}

// Adds the certificates and revocation lists in `pem` to `store`, and counts them. A null count:
// that kind is left out.
void AddAll(std::string_view pem, X509_STORE* store, int* certificates, int* lists) {
  const Infos infos(PEM_X509_INFO_read_bio(Reading(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (!infos) return;
  for (int i = 0; i < sk_X509_INFO_num(infos.get()); ++i) {
    const X509_INFO* info = sk_X509_INFO_value(infos.get(), i);
    if (certificates != nullptr && info->x509 != nullptr) {
      *certificates += X509_STORE_add_cert(store, info->x509);
    }
    if (lists != nullptr && info->crl != nullptr) *lists += X509_STORE_add_crl(store, info->crl);
  }
}

// Accepts the end of a chain without a revocation list. It is trusted because it is in the file of
// authorities, and its issuer may be unknown.
int JudgeProblem(int good, X509_STORE_CTX* context) {
  if (good == 1 || X509_STORE_CTX_get_error(context) != X509_V_ERR_UNABLE_TO_GET_CRL) return good;
  const int depth = X509_STORE_CTX_get_error_depth(context);
  const int end = sk_X509_num(X509_STORE_CTX_get0_chain(context)) - 1;
  if (depth == 0 || depth != end) return good;
  X509_STORE_CTX_set_error(context, X509_V_OK);
  return 1;
}

}  // namespace

absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return ErrnoStatus(errno, "open");
  return file;
}

absl::StatusOr<EndpointPem> ReadEndpointFiles(const v1::OperatorEndpoint& endpoint,
                                              const FileOpener& open) {
  EndpointPem pem;
  BATON_RETURN_IF_ERROR(
      Read("certificate_file", endpoint.certificate_file(), open, &pem.certificate));
  BATON_RETURN_IF_ERROR(Read("key_file", endpoint.key_file(), open, &pem.key));
  BATON_RETURN_IF_ERROR(Read("client_ca_file", endpoint.client_ca_file(), open, &pem.client_ca));
  if (!endpoint.crl_file().empty()) {
    BATON_RETURN_IF_ERROR(Read("crl_file", endpoint.crl_file(), open, &pem.crl.emplace()));
  }
  return pem;
}

absl::StatusOr<std::shared_ptr<const CertificateTrust>> CertificateTrust::Make(
    const v1::OperatorEndpoint& endpoint, const EndpointPem& pem) {
  std::shared_ptr<X509_STORE> store(X509_STORE_new(), X509_STORE_free);
  BATON_CHECK(store != nullptr);
  int authorities = 0;
  AddAll(pem.client_ca, store.get(), &authorities, nullptr);
  if (authorities == 0) {
    return Unfit("client_ca_file", endpoint.client_ca_file(),
                 "has no certificate in PEM; name a file that has");
  }
  // gRPC's handshake uses the same flags.
  unsigned long flags = X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST;
  if (pem.crl) {
    int lists = 0;
    AddAll(*pem.crl, store.get(), nullptr, &lists);
    if (lists == 0) {
      return Unfit("crl_file", endpoint.crl_file(),
                   "has no certificate revocation list in PEM; name a file that has, or leave "
                   "crl_file out");
    }
    flags |= X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL;
  }
  X509_STORE_set_flags(store.get(), flags);
  return std::shared_ptr<const CertificateTrust>(new CertificateTrust(std::move(store)));
}

absl::Status CertificateTrust::Check(std::string_view certificate, std::string_view chain) const {
  const Certificate shown = FirstCertificate(certificate);
  if (!shown) return absl::UnauthenticatedError("it is no certificate");
  const Certificates others = AllCertificates(chain);
  const Context context(X509_STORE_CTX_new());
  if (!context ||
      X509_STORE_CTX_init(context.get(), store_.get(), shown.get(), others.get()) != 1) {
    return absl::ResourceExhaustedError("there is no memory to check the certificate: try again");
  }
  X509_STORE_CTX_set_default(context.get(), "ssl_client");
  X509_STORE_CTX_set_verify_cb(context.get(), &JudgeProblem);
  const int result = X509_verify_cert(context.get());
  ERR_clear_error();
  if (result == 1) return absl::OkStatus();
  const int error = X509_STORE_CTX_get_error(context.get());
  const bool list = error == X509_V_ERR_UNABLE_TO_GET_CRL || error == X509_V_ERR_CRL_HAS_EXPIRED ||
                    error == X509_V_ERR_CRL_NOT_YET_VALID ||
                    error == X509_V_ERR_CRL_SIGNATURE_FAILURE;
  return absl::UnauthenticatedError(absl::StrCat(
      X509_verify_cert_error_string(error),
      list ? ": put a current list of its authority into crl_file of operator_endpoint" : ""));
}

absl::Status CheckIdentity(const v1::OperatorEndpoint& endpoint, const EndpointPem& pem) {
  const Certificate certificate = FirstCertificate(pem.certificate);
  if (!certificate) {
    return Unfit("certificate_file", endpoint.certificate_file(),
                 "has no certificate in PEM; name a file that has");
  }
  const Key key = PrivateKey(pem.key);
  if (!key) {
    return Unfit("key_file", endpoint.key_file(), "has no private key in PEM without a passphrase");
  }
  const bool fit = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (fit) return absl::OkStatus();
  return Unfit("key_file", endpoint.key_file(),
               absl::StrCat("is not the key of the first certificate in ",
                            endpoint.certificate_file(), "; name the two that belong together"));
}

std::optional<int64_t> CertificateExpiry(FileDescriptor file) {
  const absl::StatusOr<std::string> pem = ReadWhole(file.get());
  if (!pem.ok()) return std::nullopt;
  const Certificates all = AllCertificates(*pem);
  std::optional<int64_t> first;
  for (int i = 0; i < sk_X509_num(all.get()); ++i) {
    std::tm end = {};
    if (ASN1_TIME_to_tm(X509_get0_notAfter(sk_X509_value(all.get(), i)), &end) != 1) continue;
    const int64_t seconds = timegm(&end);
    first = std::min(first.value_or(seconds), seconds);
  }
  ERR_clear_error();
  return first;
}

}  // namespace baton
