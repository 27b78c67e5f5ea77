// Numbers for people.
#ifndef TESTS_DEMO_NUMBERS_H_
#define TESTS_DEMO_NUMBERS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace baton::demo {

// Returns "254,843".
inline std::string Grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t i = text.size(); i > 3;) text.insert(i -= 3, ",");
  return text;
}

// Returns "0.9 ms", "262 ms".
inline std::string Milliseconds(double us) {
  return absl::StrFormat("%.*f ms", us < 99'950 ? 1 : 0, us / 1000);
}

}  // namespace baton::demo

#endif  // TESTS_DEMO_NUMBERS_H_
