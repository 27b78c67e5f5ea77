// The reconciliation reports of a service's shards, in shared memory.
#ifndef SUPERVISOR_DRIVER_ENGINE_SHARD_REPORTS_H_
#define SUPERVISOR_DRIVER_ENGINE_SHARD_REPORTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/reconciliation.h"

namespace baton::driver_process {

// The reconciliation reports of the shards that one driver has taken over. It writes them to shared
// memory, and Succession reads them there, natively in another process (lib/arena/layout.md,
// "Native owners"). Thread-compatible.
class ShardReports {
 public:
  explicit ShardReports(arena::Arena* arena) : arena_(arena) {}

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
std::optional<ReconciliationReport> ReadShardReport(const arena::Arena& arena, uint32_t shard,
                                                    uint64_t epoch, uint64_t* version);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SHARD_REPORTS_H_
