// What a service takes of memory: its arena, by what it is for, computed from the layout, and the
// soft device.
#ifndef TESTS_BENCH_SERVICE_BYTES_H_
#define TESTS_BENCH_SERVICE_BYTES_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/layout.h"

namespace baton::bench {

// Of the four memories of a service; they do not say what is rounded up to whole pages.
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

// Of a service that its configuration says nothing about.
absl::StatusOr<arena::Shape> DefaultShape();
// With so many connections or shards, and the completion logs that they need.
arena::Shape WithConnections(arena::Shape shape, uint32_t connections);
arena::Shape WithShards(arena::Shape shape, uint32_t shards);

// What the files of such a service take of the machine: whole huge pages.
absl::StatusOr<double> FileBytes(const arena::Shape& shape);

// What the soft device itself holds of the heap for a connection.
//
// Of one side of a connection that has sent and received a message, with `depth` receives posted
// and completion queues for twice that of each: the mean of `connections` in this process, both of
// whose sides are here. The kernel's sockets are not in it.
absl::StatusOr<double> SoftBytesPerConnection(uint32_t connections, uint32_t depth);

}  // namespace baton::bench

#endif  // TESTS_BENCH_SERVICE_BYTES_H_
