// Applies the transactions that a shard's owner commits (layout.md, "A transaction"): posts their
// requests, and carries out their decisions and acknowledgements.
//
// DriverParts owns this part. Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_COMMIT_APPLIER_H_
#define LIB_DRIVER_COMMIT_APPLIER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/driver/connection_setup.h"
#include "lib/driver/connection_teardown.h"
#include "lib/driver/driver_state.h"
#include "lib/driver/request_poster.h"
#include "lib/driver/shared_receives.h"
#include "lib/driver/transaction.h"
#include "lib/verbs/mlx5/queue_pair.h"

namespace baton::driver {

// The result of ApplyNext().
enum class CommitOutcome : uint8_t {
  kIdle,      // no transaction is published
  kApplied,   // one transaction
  kReleased,  // one transaction, which releases the shard
  kInvalid,   // the next transaction is invalid; nothing of it was applied
};

class CommitApplier {
 public:
  CommitApplier(DriverState& state, ConnectionTeardown& teardown, RequestPoster& poster,
                SharedReceives& shared, ConnectionSetup& setup);

  // See QueueDriver.
  CommitOutcome ApplyNext(uint32_t shard, absl::Status* error);
  uint64_t PendingEntries(uint32_t shard) const;
  std::vector<uint32_t> AcceptTargets(uint32_t shard) const;
  size_t requests_applied() const { return requests_applied_; }

  // See TransactionReader.
  void SetAdopted(absl::Span<const uint32_t> shards) { reader_.SetAdopted(shards); }
  // Acknowledges the shard's completions before `entry.acknowledged`.
  void ApplyAcknowledge(uint32_t shard, const arena::CommitEntry& entry);

 private:
  bool ApplyPlain(uint32_t shard, arena::ShardRecord& record, const arena::CommitEntry& shared,
                  ShardCounters& counters);
  void EndTransaction(arena::ShardRecord& record, ShardCounters& counters, uint64_t commit_head);
  void Apply(uint32_t shard, const Transaction& transaction);
  void PrepareDecisions(uint32_t shard, const Transaction& transaction);
  void Decide(uint32_t shard, const Transaction& transaction);
  void ApplyConnection(const TransactionPart& part);
  void ApplyShardState(uint32_t shard, const arena::CommitEntry& entry);
  void ApplyHeap(uint32_t shard, const arena::CommitEntry& entry);
  uint64_t AcknowledgeRun(uint32_t shard, uint64_t begin, uint64_t end);
  void AcknowledgeOther(uint32_t shard, const arena::CompletionEntry& completion);

  // Posting requests that the reader has written to the queues.
  verbs::mlx5::QueuePair* DirectQueuesOf(uint32_t connection) const;
  void PostWritten(const TransactionPart& part);
  template <bool kReceive, typename Batch>
  void PostBatch(arena::ConnectionRecord& connection, uint64_t count,
                 verbs::mlx5::QueuePair* queue_pair, const Batch& batch, ShardCounters& counters);
  // Posting requests that the reader has listed.
  void PostListed(const TransactionPart& part);

  DriverState& state_;
  arena::Arena* const arena_;
  ConnectionTeardown& teardown_;
  RequestPoster& poster_;
  SharedReceives& shared_;
  ConnectionSetup& setup_;
  // Copies of the state's, which are read for each commit.
  const uint32_t connection_slots_;
  arena::ConnectionRecord* const records_;
  TransactionReader reader_;
  size_t requests_applied_ = 0;
  bool posts_directly_ = true;  // whether the last applied connection has direct queues
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_COMMIT_APPLIER_H_
