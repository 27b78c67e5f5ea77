#ifndef LIB_TEXT_ONE_LINE_H_
#define LIB_TEXT_ONE_LINE_H_

#include <cstddef>
#include <string>
#include <string_view>

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

}  // namespace baton

#endif  // LIB_TEXT_ONE_LINE_H_
