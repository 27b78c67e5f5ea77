#include "tests/lib/verbs/fabric.h"

#include <cstdlib>

#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/soft/soft_device.h"

namespace baton::verbs::testing {

Fabric FabricUnderTest() {
  Fabric fabric;
  if (const char* device = std::getenv("BATON_TEST_DEVICE")) fabric.device = device;
  if (const char* host = std::getenv("BATON_TEST_HOST")) fabric.host = host;
  return fabric;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const Fabric& fabric) {
  if (fabric.device == "soft") return soft::CreateSoftDevice({});
  const size_t colon = fabric.device.find(':');  // "rdma:NAME"
  rdma::RdmaDeviceOptions options;
  if (colon != std::string::npos) options.device = fabric.device.substr(colon + 1);
  return rdma::CreateRdmaDevice(options);
}

}  // namespace baton::verbs::testing
