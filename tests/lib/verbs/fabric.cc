#include "tests/lib/verbs/fabric.h"

#include <cstdlib>

#include "worker/examples/common/device_factory.h"

namespace baton::verbs::testing {

Fabric FabricUnderTest() {
  Fabric fabric;
  if (const char* device = std::getenv("BATON_TEST_DEVICE")) fabric.device = device;
  if (const char* host = std::getenv("BATON_TEST_HOST")) fabric.host = host;
  return fabric;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const Fabric& fabric) {
  return examples::OpenDevice(fabric.device);
}

}  // namespace baton::verbs::testing
