// Bytes as literals: two hexadecimal digits each, blanks between them for the reader.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_HEX_H_
#define TESTS_WORKER_EXAMPLES_NVMED_HEX_H_

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

namespace baton::nvmed {

inline uint8_t HexDigit(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<uint8_t>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<uint8_t>(digit - 'a' + 10);
  throw std::invalid_argument("not a hexadecimal digit");
}

inline std::vector<uint8_t> Hex(std::string_view text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') continue;
    bytes.push_back(static_cast<uint8_t>(HexDigit(text.at(i)) << 4 | HexDigit(text.at(i + 1))));
    ++i;
  }
  return bytes;
}

// The structure that has just these bytes.
template <typename T>
T FromHex(std::string_view text) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<uint8_t> bytes = Hex(text);
  if (bytes.size() != sizeof(T)) throw std::invalid_argument("not as many bytes");
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

template <typename T>
std::vector<uint8_t> ToBytes(const T& value) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&value);
  return {bytes, bytes + sizeof(value)};
}

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_HEX_H_
