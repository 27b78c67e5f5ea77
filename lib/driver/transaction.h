// Copies a worker's transaction out of its commit, send and receive logs, and checks all of it
// before any part has an effect (layout.md, "A transaction").
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

// The most work requests that one transaction may commit, over all its connections.
inline constexpr uint32_t kMaxTransactionRequests = 4096;

struct TransactionPart {
  arena::CommitEntry entry;
  // Indices of the part's first requests in Transaction::receives and ::sends. Valid for
  // kConnection and kSharedReceives.
  uint32_t first_receive = 0;
  uint32_t first_send = 0;
  // If not null, the part's requests were written to these queues and are not in the transaction.
  verbs::mlx5::QueuePair* direct = nullptr;
  verbs::mlx5::ReceiveQueue::Batch receives_written;
  verbs::mlx5::SendQueue::Batch sends_written;
};

struct Transaction {
  absl::Span<const TransactionPart> parts;
  absl::Span<const verbs::ReceiveRequest> receives;  // shared ones have no wr_id
  absl::Span<const verbs::SendRequest> sends;
  uint64_t send_bytes = 0;  // in the buffers of the sends
  uint32_t entries = 0;     // of the commit log
  uint32_t requests = 0;    // sends, receives and shared receives
  uint32_t kinds = 0;       // KindBit() of each part's kind

  bool Has(uint32_t bits) const { return (kinds & bits) != 0; }
};
constexpr uint32_t KindBit(arena::CommitKind kind) { return 1u << static_cast<uint32_t>(kind); }

// Returns the connection's queue pair if its requests can be posted as soon as they are committed.
// The reader then writes them to its queues. Null: they go through a list.
using DirectQueuesOf = absl::FunctionRef<verbs::mlx5::QueuePair*(uint32_t connection)>;

// Reads transactions of one service. Allocates scratch memory for the largest transaction at
// construction, and nothing later. Thread-compatible.
class TransactionReader {
 public:
  // `lkey` is that of the arena's buffers.
  TransactionReader(const arena::Arena& arena, uint32_t lkey);

  // Copies and checks the transaction that begins at entry `head` of the bank of `epoch`. Entries
  // before `tail` are published. On error the caller must apply nothing of it.
  // `resumed`: a dead driver has begun to apply it. Entries that it finished with are left out
  // (kind 0, or kAcknowledge if they acknowledge).
  // Writes the requests of connections with direct queues to these queues, without posting them.
  absl::Status Read(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail, bool resumed,
                    DirectQueuesOf direct);
  absl::Status Read(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail,
                    bool resumed = false) {
    return Read(shard, epoch, head, tail, resumed, [](uint32_t) { return nullptr; });
  }

  // Reads a transaction of one entry. `part` has a copy of it and its direct queues. REQUIRES: the
  // entry names an existing connection, and nothing of it was applied. Writes its requests to the
  // queues without posting them, and counts them and the bytes in the buffers of its sends. Returns
  // false if the caller must call Read(), which may find an error.
  bool ReadPlain(uint32_t shard, TransactionPart* part, uint64_t* requests, uint64_t* send_bytes);

  // Names the shards that the driver adopts together, if not all. A resumed transaction can have
  // moved a connection only between these.
  void SetAdopted(absl::Span<const uint32_t> shards);

  // The transaction that the last successful Read() found.
  const Transaction& transaction() const { return transaction_; }

 private:
  absl::Status CopyEntries(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail);
  absl::Status CheckPart(uint32_t shard, TransactionPart& part, bool last, DirectQueuesOf direct);
  absl::Status CheckConnection(uint32_t shard, TransactionPart& part, DirectQueuesOf direct);
  RequestList::Written WriteRequests(TransactionPart* part, verbs::mlx5::QueuePair* direct);
  absl::Status CheckReceiveEnd(const arena::CommitEntry& entry) const;
  absl::Status CheckSharedReceives(uint32_t shard, TransactionPart& part);
  absl::Status CheckHeap(const arena::CommitEntry& entry) const;
  absl::Status CheckTarget(uint32_t shard, const arena::CommitEntry& entry) const;
  bool WasMoved(const arena::CommitEntry& entry) const;
  absl::Status CheckAcknowledge(uint32_t shard, const arena::CommitEntry& entry) const;
  absl::Status CheckShardState(uint32_t shard, const arena::CommitEntry& entry) const;

  const arena::Arena& arena_;
  // Scratch with the largest allowed size; part_count_ elements belong to this Read.
  std::vector<TransactionPart> parts_;
  RequestList requests_;
  size_t part_count_ = 0;
  Transaction transaction_;
  std::vector<uint64_t> seen_;         // by connection: the last Read that named it
  std::vector<uint64_t> seen_shared_;  // by slot for a shared receive: the last Read that named it
  uint32_t shared_ = 0;                // slots for shared receives in this Read
  size_t request_count_ = 0;           // of all kinds in this Read
  uint32_t kinds_ = 0;                 // KindBit of each part of this Read
  uint64_t reads_ = 0;
  bool resumed_ = false;
  std::vector<bool> adopted_;  // by shard; empty: all
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_TRANSACTION_H_
