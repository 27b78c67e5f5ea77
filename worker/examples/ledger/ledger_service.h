// The ledger on Baton: an account per connection, kept as the connection's state.
//
// One request is one step of one transaction: its completion is acknowledged, its reply is sent,
// its receive is posted anew and the account is replaced together or not at all. If a transaction
// was never committed, the successor receives its requests again, with the account as it was before
// them, so it computes the same replies. No code here has to know whether that happened. An account
// is loaded when its first request comes, so taking a shard over costs the same for one connection
// and for ten thousand.
#ifndef WORKER_EXAMPLES_LEDGER_LEDGER_SERVICE_H_
#define WORKER_EXAMPLES_LEDGER_LEDGER_SERVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/examples/ledger/ledger_account.h"
#include "worker/worker.h"

namespace baton::ledger {

struct LedgerServiceOptions {
  // Receives kept posted for each connection. If receives are shared, all of them are kept posted.
  uint32_t window = 32;
  uint32_t message_bytes = 64;  // of requests, largest
  uint16_t version = 1;         // of this binary, named in every reply
  // Formats of accounts that the worker declares and writes. All have the same bytes here.
  uint32_t reads_state_version_min = kAccountStateVersion;
  uint32_t reads_state_version_max = kAccountStateVersion;
  uint32_t writes_state_version = kAccountStateVersion;
  // With test hooks: a request of this amount kills the process, or makes it hang. 0: none.
  uint64_t crash_on_amount = 0;
  uint64_t hang_on_amount = 0;
};

// Thread-safety: like Worker.
class LedgerService : public Service {
 public:
  explicit LedgerService(const LedgerServiceOptions& options) : options_(options) {}

  // Returns what is wrong with `options`, if anything.
  static absl::Status Validate(const LedgerServiceOptions& options);

  // Call it between Worker::Attach and Worker::Ready. kInvalidArgument: the window is larger than
  // the service's queues.
  absl::Status Fit(const Capacity& capacity);

  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) override;
  void OnLost(Shard& shard) override;
  void OnShutdown(std::string_view reason) override;

 private:
  // A peer's account with the effects of the open transaction, which Connection::state lacks.
  struct Peer {
    // The adoption of its shard in which this was made; after another one it is outdated.
    uint64_t adoption = 0;
    LedgerAccount account;
    bool closing = false;  // being disconnected: what still arrives is dropped
  };

  absl::StatusOr<LedgerAccount> Load(const Connection& connection) const;
  Peer& PeerOf(Connection& connection);
  Peer& NewPeer(const Shard& shard, Connection& connection);
  void OnConnectRequest(Shard& shard, Connection& connection);
  void OnRequest(Shard& shard, const Completion& completion);
  absl::Status Accept(Shard& shard, Connection& connection);
  absl::Status Process(Shard& shard, const Completion& completion, Peer& peer);
  void SufferFrom(absl::Span<const uint8_t> message) const;
  absl::Status PostReceive(Shard& shard, Connection& connection);
  absl::Status PostShared(Shard& shard);
  // Fails the connection, visibly.
  void Drop(Shard& shard, Connection& connection, const absl::Status& why);

  // Shared request buffers, one for each slot of each shard, come first. Then a slab for each
  // connection: request buffers, then reply buffers, each a ring of twice its queue's depth, so
  // that the buffer that a sequence number chooses is never in use.
  uint64_t SlabBytes() const;
  uint64_t SlabOffset(uint32_t connection) const;
  uint64_t SharedOffset(const Shard& shard, uint64_t slot) const;
  uint64_t RequestOffset(const Connection& connection, uint64_t sequence) const;
  uint64_t ReplyOffset(const Connection& connection, uint64_t sequence) const;

  const LedgerServiceOptions options_;
  uint64_t request_ring_ = 0, reply_ring_ = 0;    // buffers of a connection
  uint64_t shared_slots_ = 0, shared_bytes_ = 0;  // slots of a shard; bytes of all. 0: not shared
  std::vector<std::unique_ptr<Peer>> peers_;      // by connection index
  std::vector<uint64_t> adoptions_;               // by shard index: its last adoption
  uint64_t last_adoption_ = 0;                    // of any shard
};

}  // namespace baton::ledger

#endif  // WORKER_EXAMPLES_LEDGER_LEDGER_SERVICE_H_
