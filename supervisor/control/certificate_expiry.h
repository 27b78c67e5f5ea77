#ifndef SUPERVISOR_CONTROL_CERTIFICATE_EXPIRY_H_
#define SUPERVISOR_CONTROL_CERTIFICATE_EXPIRY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace baton {

// When the first of all certificates in a file in PEM ends, in seconds since 1970; nothing when the
// file cannot be read or has none.
std::optional<int64_t> CertificateExpiry(const std::string& path);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CERTIFICATE_EXPIRY_H_
