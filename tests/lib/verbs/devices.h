// The devices that the conformance tests run on.
#ifndef TESTS_LIB_VERBS_DEVICES_H_
#define TESTS_LIB_VERBS_DEVICES_H_

#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/nic_process.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {

// A connection of the soft device begins on TCP and goes on through memory. Here it does so in the
// middle of a test, from the beginning, or never.
inline soft::SoftDeviceOptions InMemory() {
  soft::SoftDeviceOptions options;
  options.memory_wire_after = 0;
  return options;
}

inline soft::SoftDeviceOptions OnTcp() {
  soft::SoftDeviceOptions options;
  options.max_memory_wires = 0;
  return options;
}

// The conformance tests run on these. A second implementation is added here, and the tests stay.
// The rdma device is there where its address is in the environment: in the virtual machine.
inline std::vector<DeviceFactory> AllDevices() {
  const auto soft = [] { return soft::CreateSoftDevice({}); };
  std::vector<DeviceFactory> devices = {
      {"soft", soft, "127.0.0.1"},
      {"softOverIpv6", soft, "::1"},
      {"softInMemory", [] { return soft::CreateSoftDevice(InMemory()); }, "127.0.0.1"},
      {"softOnTcp", [] { return soft::CreateSoftDevice(OnTcp()); }, "127.0.0.1"},
      {"softOfAProcess", OpenWithNicProcess, "127.0.0.1"},
      {"softOfAProcessInMemory", [] { return OpenWithNic(nullptr, InMemory()); }, "127.0.0.1"},
      {"softOfAProcessOnTcp", [] { return OpenWithNic(nullptr, OnTcp()); }, "127.0.0.1"}};
  if (const char* address = std::getenv("BATON_VM_ADDRESS")) {
    devices.push_back({"rdma", [] { return rdma::CreateRdmaDevice({}); }, address});
  }
  return devices;
}

inline std::string DeviceName(const ::testing::TestParamInfo<DeviceFactory>& info) {
  return info.param.name;
}

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_DEVICES_H_
