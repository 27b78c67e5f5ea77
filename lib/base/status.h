// These functions and macros make statuses, convert their text, and return them early.
#ifndef LIB_BASE_STATUS_H_
#define LIB_BASE_STATUS_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton {

// Returns the status that fits `error_number`, with the text "what: strerror (errno N)".
absl::Status ErrnoStatus(int error_number, std::string_view what);

// Returns the message as a standard string_view; Debian's Abseil has a string_view of its own.
// Valid as long as `status`.
inline std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}
// Converts a standard string_view for Abseil's functions. Valid as long as `text`.
inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace baton

#define BATON_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                        \
    if (absl::Status baton_status_ = (expression); !baton_status_.ok()) return baton_status_; \
  } while (false)

#define BATON_CONCAT_INNER_(a, b) a##b
#define BATON_CONCAT_(a, b) BATON_CONCAT_INNER_(a, b)
#define BATON_ASSIGN_OR_RETURN(lhs, expression) \
  BATON_ASSIGN_OR_RETURN_IMPL_(BATON_CONCAT_(baton_status_or_, __LINE__), lhs, expression)
#define BATON_ASSIGN_OR_RETURN_IMPL_(status_or, lhs, expression) \
  auto status_or = (expression);                                 \
  if (!status_or.ok()) return status_or.status();                \
  lhs = std::move(status_or).value()

#endif  // LIB_BASE_STATUS_H_
