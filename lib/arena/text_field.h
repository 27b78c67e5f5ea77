// Text for people in a field of fixed length. A concurrent reader may see a part of it.
#ifndef LIB_ARENA_TEXT_FIELD_H_
#define LIB_ARENA_TEXT_FIELD_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace baton::arena {

// Stores `text`, cut to fit and always ended with NUL.
template <size_t size>
void SetText(char (&field)[size], std::string_view text) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

// Returns the text, also if the writer has left no NUL.
template <size_t size>
std::string TextOf(const char (&field)[size]) {
  return std::string(field, strnlen(field, size));
}

}  // namespace baton::arena

#endif  // LIB_ARENA_TEXT_FIELD_H_
