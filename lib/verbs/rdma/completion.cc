#include "lib/verbs/rdma/completion.h"

namespace baton::verbs::rdma {
namespace {

std::optional<DeviceEventType> TypeOf(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_PORT_ACTIVE:
      return DeviceEventType::kPortUp;
    case IBV_EVENT_PORT_ERR:
      return DeviceEventType::kPortDown;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return DeviceEventType::kAddressesChanged;
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
      return DeviceEventType::kPathMigrated;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return DeviceEventType::kQueuePairFailed;
    case IBV_EVENT_CQ_ERR:
      return DeviceEventType::kCompletionQueueFailed;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return DeviceEventType::kSharedReceiveQueueLow;
    case IBV_EVENT_SRQ_ERR:
      return DeviceEventType::kSharedReceiveQueueFailed;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<DeviceEvent> ToDeviceEvent(const ibv_async_event& event) {
  const std::optional<DeviceEventType> type = TypeOf(event.event_type);
  if (!type) return std::nullopt;
  DeviceEvent translated;
  translated.type = *type;
  translated.text = ibv_event_type_str(event.event_type);
  switch (*type) {
    case DeviceEventType::kPortUp:
    case DeviceEventType::kPortDown:
    case DeviceEventType::kAddressesChanged:
      translated.port = static_cast<uint8_t>(event.element.port_num);
      break;
    case DeviceEventType::kPathMigrated:
    case DeviceEventType::kQueuePairFailed:
      translated.qp_number = event.element.qp->qp_num;
      break;
    default:
      break;
  }
  return translated;
}

}  // namespace baton::verbs::rdma
