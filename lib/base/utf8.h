// Makes foreign text fit for a protobuf string, which has to be valid UTF-8.
#ifndef LIB_BASE_UTF8_H_
#define LIB_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

// Returns the length of the character that `text` begins with, in bytes; 0: there is none.
inline size_t Utf8Length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what is beyond the last code point are no UTF-8.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

inline bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Returns the first `max_bytes` of `text`, whole characters only, with '?' for each byte that is
// not UTF-8.
inline std::string ValidUtf8(std::string_view text, size_t max_bytes) {
  std::string valid;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const size_t taken = length == 0 ? 1 : length;
    if (valid.size() + taken > max_bytes) break;
    if (length == 0) {
      valid.push_back('?');
    } else {
      valid.append(text.substr(0, length));
    }
    text.remove_prefix(taken);
  }
  return valid;
}

}  // namespace baton

#endif  // LIB_BASE_UTF8_H_
