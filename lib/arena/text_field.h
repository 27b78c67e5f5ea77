// Text in a field of fixed length, for people: a reader may find half of it.
#ifndef LIB_ARENA_TEXT_FIELD_H_
#define LIB_ARENA_TEXT_FIELD_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace baton::arena {

// Cut to fit, and always ended with NUL.
template <size_t size>
void SetText(char (&field)[size], std::string_view text) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

// Also of one that another has left without an end.
template <size_t size>
std::string TextOf(const char (&field)[size]) {
  return std::string(field, strnlen(field, size));
}

}  // namespace baton::arena

#endif  // LIB_ARENA_TEXT_FIELD_H_
