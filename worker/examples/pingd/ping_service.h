// pingd's service: the position of each connection in its protocol is the connection's state, and
// nothing else is kept. Each completion is a step and a transaction of its own
// (CommitMode::kAfterEachCompletion); ping_protocol.h has the argument.
#ifndef WORKER_EXAMPLES_PINGD_PING_SERVICE_H_
#define WORKER_EXAMPLES_PINGD_PING_SERVICE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/examples/pingd/ping_position.h"
#include "worker/worker.h"

namespace baton::pingd {

struct PingServiceOptions {
  Protocol protocol = Protocol::kRping;  // of the connections that it accepts
  uint32_t max_data_bytes = kDefaultMaxDataBytes;
  uint32_t version = 1;  // of this binary, named in every message
  // With test hooks: the fault at message `fault_at` of each connection, for tests that show that a
  // checker notices it. "lose-read", "lose-write", "repeat-read", "repeat-write", "repeat-message".
  std::string fault = {};
  uint64_t fault_at = 0;
};

// Thread-safety: like Worker.
class PingService final : public Service {
 public:
  explicit PingService(const PingServiceOptions& options) : options_(options) {}

  // Call it between Worker::Attach and Worker::Ready. kInvalidArgument: the service's capacity does
  // not suffice; the message says what would.
  absl::Status Fit(const Worker& worker);

  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) override;
  void OnLost(Shard& shard) override;
  void OnShutdown(std::string_view reason) override;

 private:
  void OnConnectRequest(Shard& shard, Connection& connection);
  absl::Status Accept(Shard& shard, Connection& connection);
  absl::Status Step(Shard& shard, const Completion& completion);
  absl::StatusOr<Action> Advance(Shard& shard, const Completion& completion,
                                 PingPosition& position);
  absl::Status Stage(Shard& shard, Connection& connection, const PingPosition& position,
                     const Action& action);
  absl::Status StageSend(Shard& shard, Connection& connection, const SendWork& work,
                         const PingPosition& position);
  absl::Status PostReceive(Shard& shard, Connection& connection);
  // Posts what a service with shared receives has room for; without them, nothing.
  absl::Status PostShared(Shard& shard);
  // Ends the connection, visibly.
  void Drop(Shard& shard, Connection& connection, const absl::Status& why);

  // The buffers: a place for each slot of shared receives, if the service has them, then a slab for
  // each connection: the peer's messages otherwise, pingd's messages, the data. The rings are twice
  // as long as their queues are deep, so the place that a sequence number chooses is never in use.
  uint64_t SharedOffset(const Shard& shard, uint64_t slot) const;
  uint64_t SlabOffset(const Connection& connection) const;
  uint64_t ReceiveOffset(const Connection& connection, uint64_t sequence) const;
  uint64_t MessageOffset(const Connection& connection, uint64_t sequence) const;
  uint64_t DataOffset(const Connection& connection) const;

  const PingServiceOptions options_;
  // These follow from the service's capacity, so they are the same in every worker of the service.
  uint64_t shared_slots_ = 0, shared_bytes_ = 0;  // slots of a shard; 0: receives are not shared
  uint64_t slab_bytes_ = 0;
  uint64_t receive_ring_ = 0, message_ring_ = 0;  // messages of a connection
};

}  // namespace baton::pingd

#endif  // WORKER_EXAMPLES_PINGD_PING_SERVICE_H_
