#include <cstdlib>

#include "gtest/gtest.h"
#include "lib/verbs/rdma/completion.h"
#include "lib/verbs/rdma/provider.h"

namespace baton::verbs::rdma {
namespace {

class AsyncEvent : public ::testing::Test {
 protected:
  static ibv_async_event OfPort(ibv_event_type type) {
    ibv_async_event event = {};
    event.event_type = type;
    event.element.port_num = 3;
    return event;
  }
  ibv_async_event OfQueuePair(ibv_event_type type) {
    queue_pair_.qp_num = 0x1234;
    ibv_async_event event = {};
    event.event_type = type;
    event.element.qp = &queue_pair_;
    return event;
  }
  static void Expect(const ibv_async_event& event, DeviceEventType type) {
    const std::optional<DeviceEvent> told = ToDeviceEvent(event);
    ASSERT_TRUE(told) << ibv_event_type_str(event.event_type);
    EXPECT_EQ(static_cast<int>(told->type), static_cast<int>(type));
    EXPECT_EQ(told->text, ibv_event_type_str(event.event_type));
  }

 private:
  ibv_qp queue_pair_ = {};
};

TEST_F(AsyncEvent, shouldNameThePort) {
  Expect(OfPort(IBV_EVENT_PORT_ACTIVE), DeviceEventType::kPortUp);
  Expect(OfPort(IBV_EVENT_PORT_ERR), DeviceEventType::kPortDown);
  for (const ibv_event_type type :
       {IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
        IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE}) {
    Expect(OfPort(type), DeviceEventType::kAddressesChanged);
    EXPECT_EQ(ToDeviceEvent(OfPort(type))->port, 3);
  }
}

TEST_F(AsyncEvent, shouldNameTheQueuePair) {
  for (const ibv_event_type type :
       {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    Expect(OfQueuePair(type), DeviceEventType::kQueuePairFailed);
    EXPECT_EQ(ToDeviceEvent(OfQueuePair(type))->qp_number, 0x1234u);
  }
  Expect(OfQueuePair(IBV_EVENT_PATH_MIG), DeviceEventType::kPathMigrated);
  Expect(OfQueuePair(IBV_EVENT_PATH_MIG_ERR), DeviceEventType::kPathMigrated);
}

TEST_F(AsyncEvent, shouldTellOfQueues) {
  ibv_async_event event = {};
  event.event_type = IBV_EVENT_CQ_ERR;
  Expect(event, DeviceEventType::kCompletionQueueFailed);
  event.event_type = IBV_EVENT_SRQ_ERR;
  Expect(event, DeviceEventType::kSharedReceiveQueueFailed);
  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  Expect(event, DeviceEventType::kSharedReceiveQueueLow);
}

// The loss of a device is told once, and by the device itself.
TEST_F(AsyncEvent, shouldSayNothingOfWhatMeansNothingToTheUser) {
  for (const ibv_event_type type : {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED,
                                    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_DEVICE_FATAL}) {
    EXPECT_FALSE(ToDeviceEvent(OfQueuePair(type))) << ibv_event_type_str(type);
  }
}

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

TEST(Provider, shouldGiveDevicesThatTellMoreTimeForTheLastReceive) {
  EXPECT_GT(OfVendor(0x02c9).last_receive_ms, OfVendor(0xffffff).last_receive_ms);
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

class CheckMemoryForkableTest : public ::testing::TestWithParam<const char*> {
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
                         ::testing::Values("RDMAV_FORK_SAFE", "IBV_FORK_SAFE"));

}  // namespace
}  // namespace baton::verbs::rdma
