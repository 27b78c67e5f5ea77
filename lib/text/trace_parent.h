// The `traceparent` of W3C's Trace Context: which trace, and which step of it, caused a request.
#ifndef LIB_TEXT_TRACE_PARENT_H_
#define LIB_TEXT_TRACE_PARENT_H_

#include <string>
#include <string_view>

namespace baton {

// Returns `text` as one of version 00, "00-<32 hex digits>-<16>-<2>"; the first four fields of a
// later version make one, too. Returns "" if it has other digits, other lengths or an id of zeros.
// https://www.w3.org/TR/trace-context/#traceparent-header
std::string CheckedTraceParent(std::string_view text);

}  // namespace baton

#endif  // LIB_TEXT_TRACE_PARENT_H_
