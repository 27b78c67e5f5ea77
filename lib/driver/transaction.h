// A worker's transaction, copied out of its commit log and send and receive logs, and checked as a
// whole before any of it has an effect (design: "Shared memory is a protocol").
#ifndef LIB_DRIVER_TRANSACTION_H_
#define LIB_DRIVER_TRANSACTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Work requests that one transaction may release, over all its connections.
inline constexpr uint32_t kMaxTransactionRequests = 4096;

struct TransactionPart {
  arena::CommitEntry entry;
  // kConnection: where its copies begin in Transaction::requests; receives, then sends.
  // kSharedReceives: where those of its slots begin.
  uint32_t first_receive = 0;
  uint32_t first_send = 0;
};

struct Transaction {
  absl::Span<const TransactionPart> parts;
  absl::Span<const arena::WorkRequest> requests;
  uint32_t entries = 0;  // of the commit log
};

// What a work request may be: within the buffers, and what the device does.
struct RequestLimits {
  uint64_t buffer_bytes = 0;
  uint64_t max_message_bytes = 0;  // of a send; 0: not told
  uint32_t missing_opcodes = 0;    // a bit for each verbs::Opcode
};
RequestLimits LimitsOf(const arena::Arena& arena);

// Reads transactions of one service. Keeps scratch memory for the largest that is allowed; after
// construction nothing is allocated. Thread-compatible.
class TransactionReader {
 public:
  explicit TransactionReader(const arena::Arena& arena);

  // Copies and checks the transaction that begins at entry `head` of the bank of `epoch`; entries
  // before `tail` are published. An error says what is wrong with it: nothing of it may be applied.
  // `resumed`: a driver that died has begun to apply it, and entries whose connection it was done
  // with are left out (kind 0).
  absl::Status Read(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail,
                    bool resumed = false);

  // Those that the driver adopts together, if not all: only between these can what is resumed have
  // moved a connection which nobody else has gone on with.
  void SetAdopted(absl::Span<const uint32_t> shards);

  // What the last successful Read has found.
  const Transaction& transaction() const { return transaction_; }

  // Checks one work request on its own: opcode, flags, number and bounds of its buffers.
  static absl::Status CheckRequest(const arena::WorkRequest& request, bool receive,
                                   const RequestLimits& limits);

 private:
  absl::Status CopyEntries(uint32_t shard, uint64_t epoch, uint64_t head, uint64_t tail);
  absl::Status CheckPart(uint32_t shard, TransactionPart& part, bool last);
  absl::Status CheckConnection(uint32_t shard, TransactionPart& part);
  absl::Status CheckReceiveEnd(const arena::CommitEntry& entry) const;
  absl::Status CheckSharedReceives(uint32_t shard, TransactionPart& part);
  absl::Status CheckTarget(uint32_t shard, const arena::CommitEntry& entry) const;
  bool WasMoved(const arena::CommitEntry& entry) const;
  absl::Status CheckAcknowledge(uint32_t shard, const arena::CommitEntry& entry) const;
  absl::Status CheckShardState(uint32_t shard, const arena::CommitEntry& entry) const;
  absl::Status CopyRequests(uint32_t connection, bool receive, uint64_t from, uint64_t to);
  absl::Status CopyRequest(const arena::WorkRequest& shared, bool receive);

  const arena::Arena& arena_;
  const RequestLimits limits_;
  // Scratch: as many as are allowed, of which so many are this Read's.
  std::vector<TransactionPart> parts_;
  std::vector<arena::WorkRequest> requests_;
  size_t part_count_ = 0;
  size_t request_count_ = 0;
  Transaction transaction_;
  std::vector<uint64_t> seen_;         // per connection: the Read that last named it
  std::vector<uint64_t> seen_shared_;  // per slot for a shared receive: likewise
  uint32_t shared_ = 0;                // such slots in this Read
  uint64_t reads_ = 0;
  bool resumed_ = false;
  std::vector<bool> adopted_;  // by shard; empty: all
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_TRANSACTION_H_
