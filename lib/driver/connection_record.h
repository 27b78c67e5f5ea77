// What of a connection's record whoever has the connection manager's id fills in: a driver, or the
// keeper for the drivers of a native service.
#ifndef LIB_DRIVER_CONNECTION_RECORD_H_
#define LIB_DRIVER_CONNECTION_RECORD_H_

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "lib/arena/layout.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

void FillAddresses(const verbs::ConnectionId& id, arena::ConnectionRecord* record);

// The peer's, cut to what the record has room for.
void FillPrivateData(std::string_view data, arena::ConnectionRecord* record);

// kResourceExhausted: none of a service's `slots` is free.
absl::Status NoSlotFree(size_t slots);

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_RECORD_H_
