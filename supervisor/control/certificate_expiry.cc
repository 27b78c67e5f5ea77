#include "supervisor/control/certificate_expiry.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <utility>

namespace baton {

std::optional<int64_t> CertificateExpiry(FileDescriptor descriptor) {
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(fdopen(descriptor.get(), "r"),
                                                                &std::fclose);
  if (!file) return std::nullopt;
  (void)descriptor.Release();  // the file's now
  std::optional<int64_t> first;
  for (;;) {
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(
        PEM_read_X509(file.get(), nullptr, nullptr, nullptr), &X509_free);
    if (!certificate) break;
    std::tm end = {};
    if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) continue;
    const int64_t seconds = timegm(&end);
    first = std::min(first.value_or(seconds), seconds);
  }
  ERR_clear_error();  // the end of the file is one
  return first;
}

}  // namespace baton
