// Asynchronous events of libibverbs in the terms of verbs.h.
#ifndef LIB_VERBS_RDMA_ASYNC_EVENT_H_
#define LIB_VERBS_RDMA_ASYNC_EVENT_H_

#include <infiniband/verbs.h>

#include <optional>

#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

// None: of those that tell the user nothing (ibv_get_async_event(3)).
std::optional<DeviceEvent> ToDeviceEvent(const ibv_async_event& event);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_ASYNC_EVENT_H_
