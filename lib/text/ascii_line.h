#ifndef LIB_TEXT_ASCII_LINE_H_
#define LIB_TEXT_ASCII_LINE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

// Text of others on its way into a value of gRPC's metadata: the first `max_bytes`, with '?' for
// each byte that is not printable ASCII. gRPC ends a process that adds another.
inline std::string AsciiLine(std::string_view text, size_t max_bytes) {
  std::string line(text.substr(0, max_bytes));
  for (char& c : line) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return line;
}

}  // namespace baton

#endif  // LIB_TEXT_ASCII_LINE_H_
