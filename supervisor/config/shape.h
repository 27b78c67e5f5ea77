#ifndef SUPERVISOR_CONFIG_SHAPE_H_
#define SUPERVISOR_CONFIG_SHAPE_H_

#include <chrono>

#include "lib/arena/layout.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// The shape of a service's arena. `config` is complete.
arena::Shape ShapeOf(const v1::ServiceConfig& config);

// For each GiB of an arena, beyond what any start may take. A busy machine of two processors takes
// 3 s to fill a GiB, and 1 s to map one that is full.
inline constexpr std::chrono::seconds kStartTimeoutPerGiB{4};

// The time in which a process that fills, registers or maps the arena of `service` is to be ready:
// `base`, and kStartTimeoutPerGiB for each whole GiB. `service` is complete.
std::chrono::milliseconds StartTimeout(const v1::ServiceConfig& service,
                                       std::chrono::milliseconds base);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_SHAPE_H_
