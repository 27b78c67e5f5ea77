// A worker's transaction, copied out of its commit log and send and receive logs, and checked as a
// whole before any of it has an effect (design: "Shared memory is a protocol").
#ifndef LIB_DRIVER_TRANSACTION_H_
#define LIB_DRIVER_TRANSACTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/driver/request_list.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Work requests that one transaction may release, over all its connections.
inline constexpr uint32_t kMaxTransactionRequests = 4096;

struct TransactionPart {
  arena::CommitEntry entry;
  // kConnection, kSharedReceives: where its own begin in Transaction::receives and ::sends.
  uint32_t first_receive = 0;
  uint32_t first_send = 0;
  // Where its requests were written already, if not null; they are not in the transaction then.
  verbs::mlx5::QueuePair* direct = nullptr;
  verbs::mlx5::ReceiveQueue::Batch receives_written;
  verbs::mlx5::SendQueue::Batch sends_written;
};

struct Transaction {
  absl::Span<const TransactionPart> parts;
  absl::Span<const verbs::ReceiveRequest> receives;  // of shared slots without a wr_id
  absl::Span<const verbs::SendRequest> sends;
  uint64_t send_bytes = 0;  // in the buffers of the sends
  uint32_t entries = 0;     // of the commit log
  uint32_t requests = 0;    // sends, receives and shared receives
  uint32_t kinds = 0;       // KindBit of each part's

  bool Has(uint32_t bits) const { return (kinds & bits) != 0; }
};
constexpr uint32_t KindBit(arena::CommitKind kind) { return 1u << static_cast<uint32_t>(kind); }

// Returns the queue pair of a connection whose requests can be posted as soon as they are
// committed, by writing them to its queues; null: they go through a list.
using DirectQueuesOf = absl::FunctionRef<verbs::mlx5::QueuePair*(uint32_t connection)>;

// Reads transactions of one service. Keeps scratch memory for the largest that is allowed; after
// construction nothing is allocated. Thread-compatible.
class TransactionReader {
 public:
  // `lkey`: of the arena's buffers.
  TransactionReader(const arena::Arena& arena, uint32_t lkey);

  // Copies and checks the transaction that begins at entry `head` of the bank of `epoch`; entries
  // before `tail` are published. An error says what is wrong with it: nothing of it may be applied.
  // `resumed`: a driver that died has begun to apply it, and entries whose connection it was done
  // with are left out (kind 0, or kAcknowledge where they acknowledge).
  // Requests of connections that have direct queues are written there, which posts nothing.
  absl::Status Read(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail, bool resumed,
                    DirectQueuesOf direct);
  absl::Status Read(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail,
                    bool resumed = false) {
    return Read(shard, epoch, head, tail, resumed, [](uint32_t) { return nullptr; });
  }

  // Reads a transaction of one entry, a copy of which is in `part`, with its direct queues: it
  // names a connection that exists, and nothing of it was applied. Writes its requests to the
  // queues, which posts nothing, and counts them and the bytes in the buffers of its sends. Returns
  // false where Read has to read it, or to say what is wrong.
  bool ReadPlain(uint32_t shard, TransactionPart* part, uint64_t* requests, uint64_t* send_bytes);

  // Those that the driver adopts together, if not all: only between these can what is resumed have
  // moved a connection which nobody else has gone on with.
  void SetAdopted(absl::Span<const uint32_t> shards);

  // What the last successful Read has found.
  const Transaction& transaction() const { return transaction_; }

 private:
  absl::Status CopyEntries(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail);
  absl::Status CheckPart(uint32_t shard, TransactionPart& part, bool last, DirectQueuesOf direct);
  absl::Status CheckConnection(uint32_t shard, TransactionPart& part, DirectQueuesOf direct);
  RequestList::Written WriteRequests(TransactionPart* part, verbs::mlx5::QueuePair* direct);
  absl::Status CheckReceiveEnd(const arena::CommitEntry& entry) const;
  absl::Status CheckSharedReceives(uint32_t shard, TransactionPart& part);
  absl::Status CheckTarget(uint32_t shard, const arena::CommitEntry& entry) const;
  bool WasMoved(const arena::CommitEntry& entry) const;
  absl::Status CheckAcknowledge(uint32_t shard, const arena::CommitEntry& entry) const;
  absl::Status CheckShardState(uint32_t shard, const arena::CommitEntry& entry) const;
  absl::Status CopyRequests(const arena::CommitEntry& entry, bool receive, uint64_t from,
                            uint64_t to);

  const arena::Arena& arena_;
  // Scratch: as many as are allowed, of which so many are this Read's.
  std::vector<TransactionPart> parts_;
  RequestList requests_;
  size_t part_count_ = 0;
  Transaction transaction_;
  std::vector<uint64_t> seen_;         // per connection: the Read that last named it
  std::vector<uint64_t> seen_shared_;  // per slot for a shared receive: likewise
  uint32_t shared_ = 0;                // such slots in this Read
  size_t request_count_ = 0;           // of all kinds in this Read
  uint32_t kinds_ = 0;                 // KindBit of each part of this Read
  uint64_t reads_ = 0;
  bool resumed_ = false;
  std::vector<bool> adopted_;  // by shard; empty: all
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_TRANSACTION_H_
