// Fills the fields of a connection's record that come from the connection manager. The holder of
// the id calls these: a driver, or `baton-driver` for the drivers of a native service.
#ifndef LIB_DRIVER_CONNECTION_RECORD_H_
#define LIB_DRIVER_CONNECTION_RECORD_H_

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "lib/arena/layout.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

void FillAddresses(const verbs::ConnectionId& id, arena::ConnectionRecord* record);

// Stores the peer's private data, cut to the record's size.
void FillPrivateData(std::string_view data, arena::ConnectionRecord* record);

// Returns kResourceExhausted: none of a service's `slots` is free.
absl::Status NoSlotFree(size_t slots);

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_RECORD_H_
