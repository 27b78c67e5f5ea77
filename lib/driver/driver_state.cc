#include "lib/driver/driver_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/poison.h"

namespace baton::driver {
using arena::ConnectionRecord;
using arena::ConnectionState;
using arena::PoisonLevel;
using verbs::CompletionStatus;

DriverState::DriverState(arena::Arena* driver_arena, verbs::Device* driver_device,
                         DriverObserver* driver_observer,
                         std::shared_ptr<DeviceObjects> device_objects)
    : arena(driver_arena),
      device(driver_device),
      observer(driver_observer),
      objects(std::move(device_objects)),
      last_shard(arena->shape().shards - 1),
      slots(arena->shape().connections),
      connection_slots(arena->shape().connections),
      records(&arena->connection(0)) {
  for (uint32_t i = 0; i <= last_shard; ++i) shards.emplace_back(CompletionLog(*arena, i));
  by_queue_pair.reserve(slots.size());
  ending.reserve(slots.size());
}

absl::Status DriverState::LogIsBroken(uint32_t shard) const {
  return absl::DataLossError(absl::StrCat("the completion log of shard ", shard,
                                          " cannot be gone by: ", shards[shard].log.broken(),
                                          ": another process of the service has written over it"));
}

uint32_t DriverState::FindQueuePair(uint32_t number) const {
  const auto found = by_queue_pair.find(number);
  if (found == by_queue_pair.end()) return DriverObserver::kNoConnection;
  const ConnectionRecord& connection = record(found->second);
  const bool its = connection.qp_number == number && StateOf(connection) != ConnectionState::kFree;
  return its ? found->second : DriverObserver::kNoConnection;
}

// A driver in the process of the connection manager handles a notice before it polls.
uint32_t DriverState::BeginUnnoticed(uint32_t shard, uint32_t queue_pair) {
  if (!objects->has_forked_drivers) return DriverObserver::kNoConnection;
  for (uint32_t i = 0; i < connection_slots; ++i) {
    const ConnectionRecord& connection = record(i);
    // `baton-driver` stores the shard last.
    if (arena::LoadAcquire(connection.shard) != shard || connection.qp_number != queue_pair ||
        StateOf(connection) != ConnectionState::kFree || connection.listener_port != 0 ||
        arena->managed_connection(i).handled_generation == connection.generation) {
      continue;
    }
    BeginConnecting(i);
    slots[i].unnoticed = true;
    by_queue_pair[queue_pair] = i;
    return i;
  }
  return DriverObserver::kNoConnection;
}

void DriverState::BeginConnecting(uint32_t index) {
  ConnectionRecord& connection = record(index);
  ++connection_count;
  ++arena->shard(ShardOf(connection)).connections;
  connection.answered = 1;
  SetState(connection, ConnectionState::kConnecting);
  BATON_CRASH_POINT("driver-connecting");
}

bool DriverState::LogEvent(uint32_t index, arena::CompletionKind kind, CompletionStatus status) {
  const ConnectionRecord& connection = record(index);
  ShardQueue& queue = shards[ShardOf(connection)];
  if (!queue.operated) {  // its owner has another driver
    observer->OnConnectionState(index,
                                "cannot be told to its owner: another process of the service has "
                                "written over the shard in its record");
    return true;
  }
  arena::CompletionEntry entry = {};
  entry.wr_id =
      arena::PackWrId(index, connection.generation, arena::Direction::kSend, arena::kEventSequence);
  entry.kind = static_cast<uint8_t>(kind);
  entry.status = static_cast<uint8_t>(status);
  entry.connection = index;
  entry.generation = connection.generation;
  entry.tag = connection.tag;
  Spoil(PoisonLevel(connection.poison), &entry);
  return queue.log.Append(entry);
}

}  // namespace baton::driver
