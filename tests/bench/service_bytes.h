// Computes the memory that a service takes: its arena from the layout, part by part, and the soft
// device.
#ifndef TESTS_BENCH_SERVICE_BYTES_H_
#define TESTS_BENCH_SERVICE_BYTES_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/layout.h"

namespace baton::bench {

// The four memories of a service take these. Rounding up to whole pages is not counted.
struct LayoutBytes {
  double metadata = 0;  // all that does not grow with queue depths or what is asked for
  double work_request_logs = 0;
  double completion_logs = 0;
  double state = 0;  // the application's
  double buffers = 0;

  double Total() const { return metadata + work_request_logs + completion_logs + state + buffers; }
};

LayoutBytes BytesOf(const arena::Shape& shape);
// Each part of `more` less that of `less`, over `count`.
LayoutBytes Difference(const LayoutBytes& more, const LayoutBytes& less, double count);

// Returns the shape of a service about which its configuration says nothing.
absl::StatusOr<arena::Shape> DefaultShape();
// Both return `shape` with so many, and with the completion logs that these need.
arena::Shape WithConnections(arena::Shape shape, uint32_t connections);
arena::Shape WithShards(arena::Shape shape, uint32_t shards);

// A service of one shard whose connections share receives.
struct SharingService {
  uint32_t connections = 0;
  uint32_t send_queue_depth = 0;
  bool native = false;
};
// Returns its shape. Everything that is not given has its default size.
absl::StatusOr<arena::Shape> ShapeOfSharing(const SharingService& service);

// Bytes of a service for each of its connections: all that a connection without work takes in
// memory that its processes share, by the layouts. What the service has once is divided among them.
struct IdleBytes {
  double arena = 0;   // logs, records and state
  double queues = 0;  // of the soft device: queue pairs, with the pool, and the completion queue

  double Total() const { return arena + queues; }
};
IdleBytes IdleBytesOf(const arena::Shape& shape);

// What the files of such a service take of the machine: whole huge pages.
absl::StatusOr<double> FileBytes(const arena::Shape& shape);

// Measures how much heap the soft device itself holds for one side of a connection. That side has
// sent and received a message, has `depth` receives posted, and completion queues for twice that of
// each. Returns the mean of `connections` in this process, both of whose sides are here. The
// kernel's sockets are not in it.
absl::StatusOr<double> SoftBytesPerConnection(uint32_t connections, uint32_t depth);

}  // namespace baton::bench

#endif  // TESTS_BENCH_SERVICE_BYTES_H_
