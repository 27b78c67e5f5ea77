#ifndef LIB_BASE_STATUS_TEXT_H_
#define LIB_BASE_STATUS_TEXT_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton {

// Returns the message as a standard string_view; Debian's Abseil has a string_view of its own.
// Valid as long as `status`.
inline std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}
// Converts a standard string_view for Abseil's functions. Valid as long as `text`.
inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace baton

#endif  // LIB_BASE_STATUS_TEXT_H_
