#ifndef SUPERVISOR_CONTROL_CERTIFICATE_EXPIRY_H_
#define SUPERVISOR_CONTROL_CERTIFICATE_EXPIRY_H_

#include <cstdint>
#include <optional>

#include "lib/base/file_descriptor.h"

namespace baton {

// When the first of all certificates in a file in PEM ends, in seconds since 1970; nothing when the
// file cannot be read or has none.
std::optional<int64_t> CertificateExpiry(FileDescriptor file);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CERTIFICATE_EXPIRY_H_
