// Counts what the drivers of shards have done that run in other processes.
#ifndef SUPERVISOR_DRIVER_ENGINE_ARENA_COUNTERS_H_
#define SUPERVISOR_DRIVER_ENGINE_ARENA_COUNTERS_H_

#include <cstdint>
#include "lib/arena/arena.h"
#include "lib/base/shared_array.h"
#include "lib/driver/queue_driver.h"

namespace baton::driver_process {

// Counters of shards since their `baton-driver` started, by the arena: what their drivers have
// done.
//
// Drivers count transactions and sent bytes in the record of the shard, and everything else in the
// records of connections. Such a record starts over with the next connection of its slot, and
// follows its connection to another shard. So the growth since the last look is added to the shard
// that has the connection: these counters never fall.
//
// Thread-compatible.
class ArenaCounters {
 public:
  // `arena` outlives it.
  explicit ArenaCounters(const arena::Arena* arena);
  // Sets whether processes that are forked from now on share the counters.
  absl::Status SetInherited(bool inherited);

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
  SharedArray<Seen> seen_;     // by connection
  SharedArray<Total> totals_;  // by shard
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_ARENA_COUNTERS_H_
