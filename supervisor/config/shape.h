#ifndef SUPERVISOR_CONFIG_SHAPE_H_
#define SUPERVISOR_CONFIG_SHAPE_H_

#include "lib/arena/layout.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// The shape of a service's arena. `config` is complete.
arena::Shape ShapeOf(const v1::ServiceConfig& config);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_SHAPE_H_
