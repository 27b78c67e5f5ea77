// Where tests' services and their peers meet.
#ifndef TESTS_LIB_VERBS_FABRIC_H_
#define TESTS_LIB_VERBS_FABRIC_H_

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/device_factory.h"

namespace baton::verbs::testing {

struct Fabric {
  std::string device = "soft";     // as batond's --device names it
  std::string host = "127.0.0.1";  // an IPv4 address that the device has
};

// The soft device, unless BATON_TEST_DEVICE and BATON_TEST_HOST say otherwise: the tests of the
// layers above run on a real device with them.
inline Fabric FabricUnderTest() {
  Fabric fabric;
  if (const char* device = std::getenv("BATON_TEST_DEVICE")) fabric.device = device;
  if (const char* host = std::getenv("BATON_TEST_HOST")) fabric.host = host;
  return fabric;
}
inline absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const Fabric& fabric) {
  return examples::OpenDevice(fabric.device);
}

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_FABRIC_H_
