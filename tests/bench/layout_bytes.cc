#include "tests/bench/layout_bytes.h"

#include <sys/stat.h>

#include <cerrno>

#include "lib/arena/arena.h"
#include "lib/base/status.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/config/config.h"
#include "supervisor/config/shape.h"

namespace baton::bench {

LayoutBytes BytesOf(const arena::Shape& shape) {
  const arena::WorkerMemoryMap worker(shape);
  const arena::DriverMemoryMap driver(shape);
  const arena::RecoveryMemoryMap recovery(shape);
  LayoutBytes bytes;
  bytes.work_request_logs = static_cast<double>(
      shape.connections * (worker.send_log_bytes + worker.receive_log_bytes) +
      shape.shards * (worker.shared_receive_bytes + driver.shared_receive_bytes));
  bytes.completion_logs = static_cast<double>(shape.shards * driver.completion_log_bytes);
  bytes.state = 2.0 * (static_cast<double>(shape.connections) * shape.connection_state_bytes +
                       static_cast<double>(shape.shards) * shape.shard_state_bytes);
  bytes.buffers = static_cast<double>(shape.buffer_bytes);
  bytes.metadata = static_cast<double>(worker.total + driver.total + recovery.total) -
                   bytes.work_request_logs - bytes.completion_logs - bytes.state;
  return bytes;
}

LayoutBytes Difference(const LayoutBytes& more, const LayoutBytes& less, double count) {
  LayoutBytes each;
  each.metadata = (more.metadata - less.metadata) / count;
  each.work_request_logs = (more.work_request_logs - less.work_request_logs) / count;
  each.completion_logs = (more.completion_logs - less.completion_logs) / count;
  each.state = (more.state - less.state) / count;
  each.buffers = (more.buffers - less.buffers) / count;
  return each;
}

absl::StatusOr<arena::Shape> DefaultShape() {
  v1::Config config;
  config.set_state_dir("/");
  v1::ServiceConfig& service = *config.add_services();
  service.set_name("default");
  service.mutable_device()->mutable_soft();
  BATON_RETURN_IF_ERROR(CompleteConfig(config));
  return ShapeOf(config.services(0));
}

arena::Shape WithConnections(arena::Shape shape, uint32_t connections) {
  shape.connections = connections;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

arena::Shape WithShards(arena::Shape shape, uint32_t shards) {
  shape.shards = shards;
  return shape;
}

absl::StatusOr<double> FileBytes(const arena::Shape& shape) {
  BATON_ASSIGN_OR_RETURN(const arena::Arena arena, arena::Arena::Create(shape, "size"));
  double bytes = 0;
  for (const int fd :
       {arena.worker_log_fd(), arena.driver_log_fd(), arena.buffers_fd(), arena.recovery_fd()}) {
    struct stat status = {};
    if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "fstat of a memory of an arena");
    bytes += static_cast<double>(status.st_blocks) * 512;  // stat(2)
  }
  return bytes;
}

}  // namespace baton::bench
