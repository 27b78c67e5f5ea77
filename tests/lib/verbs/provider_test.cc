#include "lib/verbs/rdma/provider.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "lib/verbs/rdma/completion.h"

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

// A received message as the device tells it, with these IBV_WC_*.
Completion Received(uint32_t vendor, unsigned int flags, uint32_t data) {
  ibv_wc told = {};
  told.opcode = IBV_WC_RECV;
  told.wc_flags = flags;
  told.imm_data = data;
  Completion completion;
  TranslateCompletion(told, OfVendor(vendor).invalidated_flags, &completion);
  return completion;
}

TEST(Provider, shouldTellWhichKeyWasInvalidated) {
  for (const uint32_t vendor : {0x02c9U, 0xffffffU}) {
    const Completion told = Received(vendor, IBV_WC_GRH | IBV_WC_WITH_INV, 0x1234);
    EXPECT_TRUE(told.has_invalidate) << std::hex << vendor;
    EXPECT_FALSE(told.has_immediate);
    EXPECT_EQ(told.immediate, 0x1234u);
    EXPECT_FALSE(Received(vendor, IBV_WC_GRH, 0x1234).has_invalidate) << std::hex << vendor;
  }
}

// IBV_WC_IP_CSUM_OK is how Soft-RoCE says it, and means what it says on others.
TEST(Provider, shouldTellItAsSoftRoceSaysIt) {
  const Completion told = Received(0xffffff, IBV_WC_GRH | IBV_WC_IP_CSUM_OK, 0x1234);
  EXPECT_TRUE(told.has_invalidate);
  EXPECT_EQ(told.immediate, 0x1234u);
  EXPECT_FALSE(Received(0x02c9, IBV_WC_GRH | IBV_WC_IP_CSUM_OK, 0x1234).has_invalidate);
}

TEST(Provider, shouldTellImmediateDataApart) {
  const Completion told = Received(0xffffff, IBV_WC_GRH | IBV_WC_WITH_IMM, htonl(0x1234));
  EXPECT_TRUE(told.has_immediate);
  EXPECT_FALSE(told.has_invalidate);
  EXPECT_EQ(told.immediate, 0x1234u);
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
