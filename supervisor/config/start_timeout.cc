#include "supervisor/config/start_timeout.h"

#include "lib/arena/layout.h"
#include "supervisor/config/shape.h"

namespace baton {

std::chrono::milliseconds StartTimeout(const v1::ServiceConfig& service,
                                       std::chrono::milliseconds base) {
  const arena::Shape shape = ShapeOf(service);
  const uint64_t bytes = shape.buffer_bytes + arena::WorkerMemoryMap(shape).total +
                         arena::DriverMemoryMap(shape).total +
                         arena::RecoveryMemoryMap(shape).total;
  return base + kStartTimeoutPerGiB * (bytes >> 30);
}

}  // namespace baton
