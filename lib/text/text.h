// These functions make foreign text fit for one line, format times, and parse addresses and the
// `traceparent` of a request.
#ifndef LIB_TEXT_TEXT_H_
#define LIB_TEXT_TEXT_H_

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "lib/base/utf8.h"

namespace baton {

// Makes foreign text fit for a log or an event. Returns its first `max_bytes`, valid UTF-8, with
// '?' for what would end the line or control a terminal.
inline std::string OneLine(std::string_view text, size_t max_bytes) {
  std::string line = ValidUtf8(text, max_bytes);
  for (size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    // C1 control characters are two bytes, 0xc2 and the character.
    const bool c1 = byte == 0xc2 && static_cast<unsigned char>(line[i + 1]) < 0xa0;
    if (c1) line.replace(i, 2, "?");
    if (byte < 0x20 || byte == 0x7f) line[i] = '?';
  }
  return line;
}

// Makes foreign text fit for a value of gRPC's metadata. Returns its first `max_bytes`, with '?'
// for each byte that is not printable ASCII. gRPC ends a process that adds another byte.
inline std::string AsciiLine(std::string_view text, size_t max_bytes) {
  std::string line(text.substr(0, max_bytes));
  for (char& c : line) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return line;
}

// Formats a time as in RFC 3339, in UTC: "2025-01-31T09:15:00.123456Z".
inline std::string UtcTime(int64_t unix_micros) {
  const time_t seconds = unix_micros / 1'000'000;
  tm parts;
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  return absl::StrFormat("%s.%06dZ", text, unix_micros % 1'000'000);
}

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// Parses "HOST:PORT". An IPv6 literal, and nothing else, has brackets; the host is not empty. Does
// not look whether there is such a host. std::nullopt: `text` is of another form.
std::optional<HostPort> ParseHostPort(std::string_view text);

// Checks a `traceparent` of W3C's Trace Context, which says which trace, and which step of it,
// caused a request. Returns `text` as one of version 00, "00-<32 hex digits>-<16>-<2>"; the first
// four fields of a later version make one, too. Returns "" if it has other digits, other lengths or
// an id of zeros.
// https://www.w3.org/TR/trace-context/#traceparent-header
std::string CheckedTraceParent(std::string_view text);

}  // namespace baton

#endif  // LIB_TEXT_TEXT_H_
