#include "lib/verbs/rdma/provider.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace baton::verbs::rdma {
namespace {

const Provider& OfVendor(uint32_t vendor) {
  ibv_device_attr device = {};
  device.vendor_id = vendor;
  return ProviderOf(device);
}

TEST(Provider, shouldLetForkedProcessesPostOnSoftRoce) {
  const Provider& soft_roce = OfVendor(0xffffff);
  EXPECT_NE(soft_roce.post_send_forked, nullptr);
  EXPECT_NE(soft_roce.check_forkable, nullptr);
}

TEST(Provider, shouldKnowOfNoOtherThatForkedProcessesCanPostOnIt) {
  constexpr uint32_t kNvidia = 0x02c9, kIntel = 0x8086, kBroadcom = 0x14e4;
  for (const uint32_t vendor : {kNvidia, kIntel, kBroadcom, 0U}) {
    EXPECT_EQ(OfVendor(vendor).post_send_forked, nullptr) << std::hex << vendor;
  }
}

TEST(Provider, shouldGiveDevicesThatTellMoreTimeToDrain) {
  EXPECT_GT(OfVendor(0x02c9).drain_ms, OfVendor(0xffffff).drain_ms);
}

class CheckMemoryForkableTest : public testing::TestWithParam<const char*> {
 protected:
  CheckMemoryForkableTest() { Clear(); }
  ~CheckMemoryForkableTest() override { Clear(); }
  static void Clear() {
    unsetenv("RDMAV_FORK_SAFE");
    unsetenv("IBV_FORK_SAFE");
  }
};

TEST_P(CheckMemoryForkableTest, shouldRefuseWhatKeepsMemoryFromForkedProcesses) {
  EXPECT_TRUE(CheckMemoryForkable().ok());
  setenv(GetParam(), "1", /*overwrite=*/1);
  EXPECT_EQ(CheckMemoryForkable().code(), absl::StatusCode::kFailedPrecondition);
  setenv(GetParam(), "0", /*overwrite=*/1);
  EXPECT_TRUE(CheckMemoryForkable().ok());
}

INSTANTIATE_TEST_SUITE_P(, CheckMemoryForkableTest,
                         testing::Values("RDMAV_FORK_SAFE", "IBV_FORK_SAFE"));

}  // namespace
}  // namespace baton::verbs::rdma
