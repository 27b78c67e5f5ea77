// The client of `./run bench connections`: many connections to one server, over raw verbs.
//
// Thread-compatible.
#ifndef TESTS_BENCH_ECHO_CLIENT_H_
#define TESTS_BENCH_ECHO_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/raw_group.h"
#include "tests/bench/timing.h"

namespace baton::bench {

class EchoClient {
 public:
  static absl::StatusOr<std::unique_ptr<EchoClient>> Create(const std::string& host, uint16_t port,
                                                            uint32_t max_connections);

  // Until there are `total`; `under_way` of them are connecting at a time.
  absl::Status Connect(uint32_t total, uint32_t under_way);
  // `count` messages and back, one under way, in turns over the first `active` connections.
  absl::StatusOr<Timing> Echo(uint32_t count, uint32_t active);

 private:
  EchoClient(std::string host, uint16_t port, uint32_t max_connections, EventChannel channel)
      : host_(std::move(host)),
        port_(port),
        max_connections_(max_connections),
        channel_(std::move(channel)) {}

  absl::Status BeginOne();
  // Takes one step of one that is connecting.
  absl::Status TakeEvent(uint32_t* established);
  absl::Status Ask(rdma_cm_id* id);
  absl::Status Exchange(uint32_t connection, uint64_t number);

  const std::string host_;
  const uint16_t port_;
  const uint32_t max_connections_;
  EventChannel channel_;
  std::unique_ptr<RawGroup> group_;  // made when the first address is resolved
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_ECHO_CLIENT_H_
