#include "lib/verbs/rdma/async_event.h"

#include <gtest/gtest.h>

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

// Of a device that is lost the device itself tells, once.
TEST_F(AsyncEvent, shouldSayNothingOfWhatMeansNothingToTheUser) {
  for (const ibv_event_type type : {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED,
                                    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_DEVICE_FATAL}) {
    EXPECT_FALSE(ToDeviceEvent(OfQueuePair(type))) << ibv_event_type_str(type);
  }
}

}  // namespace
}  // namespace baton::verbs::rdma
