#include "lib/verbs/rdma/completion.h"

#include <cstdint>

namespace baton::verbs::rdma {
namespace {

// What an event is about.
enum class Of : uint8_t { kPort, kQueuePair, kOther };

struct Row {
  ibv_event_type theirs;
  DeviceEventType ours;
  Of of;
};
constexpr Row kRows[] = {
    {IBV_EVENT_PORT_ACTIVE, DeviceEventType::kPortUp, Of::kPort},
    {IBV_EVENT_PORT_ERR, DeviceEventType::kPortDown, Of::kPort},
    {IBV_EVENT_LID_CHANGE, DeviceEventType::kAddressesChanged, Of::kPort},
    {IBV_EVENT_PKEY_CHANGE, DeviceEventType::kAddressesChanged, Of::kPort},
    {IBV_EVENT_SM_CHANGE, DeviceEventType::kAddressesChanged, Of::kPort},
    {IBV_EVENT_CLIENT_REREGISTER, DeviceEventType::kAddressesChanged, Of::kPort},
    {IBV_EVENT_GID_CHANGE, DeviceEventType::kAddressesChanged, Of::kPort},
    {IBV_EVENT_PATH_MIG, DeviceEventType::kPathMigrated, Of::kQueuePair},
    {IBV_EVENT_PATH_MIG_ERR, DeviceEventType::kPathMigrated, Of::kQueuePair},
    {IBV_EVENT_QP_FATAL, DeviceEventType::kQueuePairFailed, Of::kQueuePair},
    {IBV_EVENT_QP_REQ_ERR, DeviceEventType::kQueuePairFailed, Of::kQueuePair},
    {IBV_EVENT_QP_ACCESS_ERR, DeviceEventType::kQueuePairFailed, Of::kQueuePair},
    {IBV_EVENT_CQ_ERR, DeviceEventType::kCompletionQueueFailed, Of::kOther},
    {IBV_EVENT_SRQ_LIMIT_REACHED, DeviceEventType::kSharedReceiveQueueLow, Of::kOther},
    {IBV_EVENT_SRQ_ERR, DeviceEventType::kSharedReceiveQueueFailed, Of::kOther},
};

}  // namespace

std::optional<DeviceEvent> ToDeviceEvent(const ibv_async_event& event) {
  for (const Row& row : kRows) {
    if (row.theirs != event.event_type) continue;
    DeviceEvent translated = {.type = row.ours, .text = ibv_event_type_str(event.event_type)};
    if (row.of == Of::kPort) translated.port = static_cast<uint8_t>(event.element.port_num);
    if (row.of == Of::kQueuePair) translated.qp_number = event.element.qp->qp_num;
    return translated;
  }
  return std::nullopt;
}

}  // namespace baton::verbs::rdma
