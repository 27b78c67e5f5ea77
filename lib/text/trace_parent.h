// The `traceparent` of W3C's Trace Context: which trace, and which step of it, caused a request.
#ifndef LIB_TEXT_TRACE_PARENT_H_
#define LIB_TEXT_TRACE_PARENT_H_

#include <string>
#include <string_view>

namespace baton {

// `text` as one of version 00, "00-<32 hex digits>-<16>-<2>" (a later version's first four fields
// are that, too), or empty where it is none: other digits, other lengths, an id of zeros.
// https://www.w3.org/TR/trace-context/#traceparent-header
std::string CheckedTraceParent(std::string_view text);

}  // namespace baton

#endif  // LIB_TEXT_TRACE_PARENT_H_
