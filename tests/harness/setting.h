// Reads the settings of a test from the environment: how much it does, the seed that it replays.
#ifndef TESTS_HARNESS_SETTING_H_
#define TESTS_HARNESS_SETTING_H_

#include <cstdint>
#include <cstdlib>

namespace baton::harness {

inline uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_SETTING_H_
