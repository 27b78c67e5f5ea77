// Planned moves of several shards at once, with one time-out and one answer.
#ifndef SUPERVISOR_KEEPER_UPGRADES_HANDOFFS_H_
#define SUPERVISOR_KEEPER_UPGRADES_HANDOFFS_H_

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "supervisor/keeper/driver_client.h"

namespace baton::keeper {

struct ShardMove {
  uint32_t shard = 0;
  uint32_t slot = 0;  // of the worker that it moves to
};

struct HandoffsResult {
  absl::Status status;  // the first failure
  uint32_t moved = 0;
  double slowest_us = 0;  // release to the successor's first commit
};

// Moves all shards of `moves`, and calls `done` when the last has moved or failed to. Management
// loop's thread. `loop` and `driver` outlive the moves. A shard that has not moved after
// `timeout_ms` stays with its owner.
void MoveShards(boost::asio::io_context& loop, DriverClient& driver,
                const std::vector<ShardMove>& moves, uint32_t timeout_ms,
                std::function<void(const HandoffsResult&)> done);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_HANDOFFS_H_
