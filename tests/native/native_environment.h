// What the tests of native drivers are told by the environment.
#ifndef TESTS_NATIVE_NATIVE_ENVIRONMENT_H_
#define TESTS_NATIVE_NATIVE_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/harness/setting.h"

namespace baton::native {

// The rdma device is there where its address is in the environment: in the virtual machine. Else
// the device under test is a soft one whose NIC is a process.
inline bool IsSoftUnderTest() { return std::getenv("BATON_VM_ADDRESS") == nullptr; }

// Returns an address of the device.
inline std::string HostUnderTest() {
  return IsSoftUnderTest() ? "127.0.0.1" : std::getenv("BATON_VM_ADDRESS");
}

}  // namespace baton::native

#endif  // TESTS_NATIVE_NATIVE_ENVIRONMENT_H_
