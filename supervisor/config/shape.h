#ifndef SUPERVISOR_CONFIG_SHAPE_H_
#define SUPERVISOR_CONFIG_SHAPE_H_

#include <chrono>

#include "lib/arena/layout.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// Returns the shape of a service's arena. `config` must be complete.
arena::Shape ShapeOf(const v1::ServiceConfig& config);

// Time for each GiB of an arena, beyond that of any start. A busy machine with two processors takes
// 3 s to fill a GiB, and 1 s to map a full one.
inline constexpr std::chrono::seconds kStartTimeoutPerGiB{4};

// Returns the time in which a process that fills, registers or maps the arena of `service` has to
// be ready: `base`, and kStartTimeoutPerGiB for each whole GiB. `service` must be complete.
std::chrono::milliseconds StartTimeout(const v1::ServiceConfig& service,
                                       std::chrono::milliseconds base);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_SHAPE_H_
