// What the tests of native drivers are told by the environment.
#ifndef TESTS_NATIVE_NATIVE_ENVIRONMENT_H_
#define TESTS_NATIVE_NATIVE_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>
#include <string>

namespace baton::native {

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// Of the device.
inline std::string HostUnderTest() {
  const char* const host = std::getenv("BATON_VM_ADDRESS");
  return host == nullptr ? "" : host;
}

}  // namespace baton::native

#endif  // TESTS_NATIVE_NATIVE_ENVIRONMENT_H_
