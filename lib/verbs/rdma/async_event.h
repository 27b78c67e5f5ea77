// Asynchronous events of libibverbs in the terms of verbs.h.
#ifndef LIB_VERBS_RDMA_ASYNC_EVENT_H_
#define LIB_VERBS_RDMA_ASYNC_EVENT_H_

#include <infiniband/verbs.h>

#include <optional>

#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

// Returns nullopt for events without a meaning to the user (ibv_get_async_event(3)).
std::optional<DeviceEvent> ToDeviceEvent(const ibv_async_event& event);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_ASYNC_EVENT_H_
