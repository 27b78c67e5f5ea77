// Says what the drivers of a native service's shards have done: counts it, and reports it after a
// recovery.
#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_REPORTS_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_REPORTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/reconciliation.h"

namespace baton::driver_process {

// Counters of a native service's shards since its `baton-driver` started: what their drivers have
// done.
//
// Drivers count transactions and sent bytes in the record of the shard, and everything else in the
// records of connections. Such a record starts over with the next connection of its slot, and
// follows its connection to another shard. So the growth since the last look is added to the shard
// that has the connection: these counters never fall.
//
// Thread-compatible.
class NativeCounters {
 public:
  // `arena` outlives it.
  explicit NativeCounters(const arena::Arena* arena);

  // Returns what is done by now. Looks at every connection.
  driver::ShardCounters Of(uint32_t shard);

  // The caller calls this before the slot of a connection that has ended serves another one.
  void Look(uint32_t connection);

 private:
  struct Seen {
    uint32_t generation = 0;
    uint64_t sends = 0;     // posted
    uint64_t receives = 0;  // posted; completed where the shard shares its receives
    uint64_t bytes_received = 0;
  };
  struct Total {
    uint64_t sends = 0;
    uint64_t receives = 0;
    uint64_t bytes_received = 0;
    uint64_t bytes_sent = 0;              // the most that Of() has returned
    uint64_t shared_receives_posted = 0;  // the most that Of() has returned
  };

  void AddSharedReceives(uint32_t shard, driver::ShardCounters* counters);

  const arena::Arena* const arena_;
  const bool shares_receives_;
  std::vector<Seen> seen_;     // by connection
  std::vector<Total> totals_;  // by shard
};

// The reconciliation reports of the shards that one process has taken over. The worker that
// recovers a shard writes its report to shared memory, and `baton-driver` reads it in a later turn
// (lib/arena/layout.md, "Native owners"). Thread-compatible.
class NativeReports {
 public:
  explicit NativeReports(arena::Arena* arena) : arena_(arena) {}

  // Writes the report, at the cut. Requests are ambiguous in it if they may have been posted and
  // the device has not said so. `connections`: all that are in the shard, and maybe others.
  void Write(uint32_t shard, absl::Span<const uint32_t> connections, ReconciliationReport report);

  // Called when it is known that the queue's requests before `end` were submitted, and those from
  // it on were not. Returns whether a report has changed.
  bool OnSettled(uint32_t connection, bool receive, uint64_t end);

 private:
  struct Ambiguous {
    uint32_t shard;
    uint64_t epoch;
    uint32_t connection;
    bool receive;
    uint64_t begin, end;
  };

  void FindAmbiguous(uint32_t shard, absl::Span<const uint32_t> connections,
                     ReconciliationReport* report);
  void CorrectSettled(uint32_t shard, ReconciliationReport* report);

  arena::Arena* arena_;
  std::vector<Ambiguous> ambiguous_;
  std::vector<Ambiguous> never_posted_;  // as the device told before the report was written
};

// Reads the report about the end of `epoch`. Returns nothing if the report does not exist, was
// overwritten, or is being written. `*version` changes whenever the report changes. The caller sets
// the report's cause.
std::optional<ReconciliationReport> ReadNativeReport(const arena::Arena& arena, uint32_t shard,
                                                     uint64_t epoch, uint64_t* version);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_REPORTS_H_
