// memd's service: what a connection has is its state (memd_state.h), and nothing else is kept but
// when leases end, which each owner learns from the states that it adopts. Each completion is a
// transaction of its own (CommitMode::kAfterEachCompletion). memd_protocol.h has the argument.
#ifndef WORKER_EXAMPLES_MEMD_MEMD_SERVICE_H_
#define WORKER_EXAMPLES_MEMD_MEMD_SERVICE_H_

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "worker/examples/memd/memd_protocol.h"
#include "worker/examples/memd/memd_state.h"
#include "worker/worker.h"

namespace baton::memd {

struct MemdServiceOptions {
  uint32_t most_leases = Leases::kMostLeases;  // of a connection
  uint64_t most_bytes = uint64_t{1} << 30;     // of all leases of a connection
  uint32_t version = 1;                        // of this binary, named in every reply
};

// When the leases of connections end, the earliest first. Thread-compatible.
class Deadlines {
 public:
  // `end_ns`: of Leases::Now(); 0: none does.
  void Set(Connection* connection, uint64_t end_ns);
  void Forget(const Shard& shard);
  bool empty() const { return ends_.empty(); }
  uint64_t first_end() const { return ends_.begin()->first; }
  Connection* first() const { return ends_.begin()->second; }

 private:
  struct End {
    uint64_t end_ns = 0;
    const Shard* shard = nullptr;
  };
  std::set<std::pair<uint64_t, Connection*>> ends_;
  absl::flat_hash_map<Connection*, End> end_of_;
};

// Thread-safety: like Worker.
class MemdService final : public Service {
 public:
  explicit MemdService(const MemdServiceOptions& options) : options_(options) {}

  // Call it between Worker::Attach and Worker::Ready. The service must not be destroyed before
  // `worker`. kInvalidArgument: the service's capacity does not suffice; the message says what
  // would.
  absl::Status Begin(Worker& worker);

  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) override;
  void OnRelease(Shard& shard) override;
  void OnLost(Shard& shard) override;
  void OnShutdown(std::string_view reason) override;

 private:
  absl::Status Fit(const Worker& worker);
  absl::StatusOr<ConnectionState> Load(Connection& connection) const;
  absl::Status Save(Connection& connection, ConnectionState& state);

  void OnConnectRequest(Shard& shard, Connection& connection);
  absl::Status Accept(Shard& shard, Connection& connection);
  absl::Status OnReceive(Shard& shard, const Completion& completion);
  absl::Status Answer(Shard& shard, Connection& connection, ConnectionState& state,
                      const Request& request);
  absl::StatusOr<Lease> Execute(ConnectionState& state, const Request& request) const;
  absl::StatusOr<Lease> Allocate(ConnectionState& state, const Request& request) const;
  Reply ReplyTo(const Request& request, const absl::StatusOr<Lease>& lease,
                const ConnectionState& state) const;
  void OnEnd(Shard& shard, const Completion& completion);
  absl::Status FreeAll(Shard& shard, Connection& connection);
  static absl::Status FreeOne(Shard& shard, const Lease& lease);
  void FreeRest(uint64_t now_ns);
  // Ends the connection, visibly.
  void Drop(Shard& shard, Connection& connection, const absl::Status& why);

  absl::Status PostReceive(Shard& shard, Connection& connection) const;
  // Posts what a service with shared receives has room for; without them, nothing.
  absl::Status PostShared(Shard& shard) const;

  // Leases whose time is over.
  void OnTimer();
  absl::Status FreeOverdue(Connection& connection, uint64_t now_ns);
  void SetTimer();

  // The buffers: a place for each slot of shared receives, if the service has them, then a slab for
  // each connection: requests otherwise, replies. The rings are twice as long as their queues are
  // deep, so the place that a sequence number chooses is never in use.
  uint64_t ReceiveOffset(const Connection& connection, uint64_t sequence) const;
  uint64_t ReplyOffset(const Connection& connection, uint64_t sequence) const;
  uint64_t SlabOffset(const Connection& connection) const {
    return shared_bytes_ + connection.index() * slab_bytes_;
  }

  const MemdServiceOptions options_;
  FileDescriptor timer_;
  uint64_t timer_end_ = 0;  // that it is set to; 0: it is not set
  Deadlines deadlines_;
  // Leases of connections that have ended, which no transaction had room to free.
  absl::flat_hash_map<Shard*, std::vector<Lease>> unfreed_;
  uint64_t retry_ns_ = 0;  // when FreeRest looks at them again; 0: there are none
  // These follow from the service's capacity, so they are the same in every worker of the service.
  uint64_t shared_slots_ = 0, shared_bytes_ = 0;  // slots of a shard; 0: receives are not shared
  uint64_t slab_bytes_ = 0;
  uint64_t receive_ring_ = 0, reply_ring_ = 0;  // places of a connection
  uint32_t most_leases_ = 0;                    // what its state has room for, and the options say
};

}  // namespace baton::memd

#endif  // WORKER_EXAMPLES_MEMD_MEMD_SERVICE_H_
