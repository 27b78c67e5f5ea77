// The devices that the conformance tests run on: a second implementation is added here, and the
// tests stay.
#ifndef TESTS_LIB_VERBS_DEVICES_H_
#define TESTS_LIB_VERBS_DEVICES_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {

inline std::vector<DeviceFactory> AllDevices() {
  const auto soft = [] { return soft::CreateSoftDevice({}); };
  return {{"soft", soft, "127.0.0.1"}, {"softOverIpv6", soft, "::1"}};
}

inline std::string DeviceName(const ::testing::TestParamInfo<DeviceFactory>& info) {
  return info.param.name;
}

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_DEVICES_H_
