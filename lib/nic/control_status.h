// Errors of the NIC as its control messages carry them, and other fields that both sides translate.
#ifndef LIB_NIC_CONTROL_STATUS_H_
#define LIB_NIC_CONTROL_STATUS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/nic/control_format.h"
#include "lib/verbs/verbs.h"

namespace baton::nic {

// Return the errno for a code that a NIC's answer can have (EIO for all others), and the code for
// an errno (kInternal for all others).
uint32_t ErrnoOf(const absl::Status& status);
absl::StatusCode CodeOf(uint32_t error);

// Copies as much of `text` as there is room for, and a 0.
template <size_t kSize>
void PutText(absl::string_view text, char (&field)[kSize]) {
  const size_t size = std::min(text.size(), kSize - 1);
  std::copy_n(text.data(), size, field);
  field[size] = 0;
}
// Reads up to the first 0 or the end of the field.
template <size_t kSize>
std::string TextOf(const char (&field)[kSize]) {
  return std::string(field, std::find(field, field + kSize, 0));
}

control::Address ToControl(const verbs::Address& address);
verbs::Address FromControl(const control::Address& address);

// Requires private data that fit.
control::Parameters ToControl(const verbs::ConnectionParameters& parameters);
// kInvalidArgument: private_bytes is more than the field has.
absl::Status FromControl(const control::Parameters& message,
                         verbs::ConnectionParameters* parameters);

}  // namespace baton::nic

#endif  // LIB_NIC_CONTROL_STATUS_H_
