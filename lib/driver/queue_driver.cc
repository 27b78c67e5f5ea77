#include "lib/driver/queue_driver.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/recovery.h"

namespace baton::driver {

QueueDriver::QueueDriver(arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
                         std::shared_ptr<DeviceObjects> objects)
    : parts_(new DriverParts{{arena, device, observer, std::move(objects)}}) {}

QueueDriver::~QueueDriver() = default;

std::unique_ptr<QueueDriver> QueueDriver::Create(arena::Arena* arena, verbs::Device* device,
                                                 DriverObserver* observer,
                                                 std::shared_ptr<DeviceObjects> objects) {
  return std::unique_ptr<QueueDriver>(new QueueDriver(arena, device, observer, std::move(objects)));
}

absl::Status QueueDriver::Adopt(absl::Span<const uint32_t> shards) {
  std::vector<uint32_t> all(parts_->state.connection_slots);
  std::iota(all.begin(), all.end(), 0);
  return Adopt(shards, all);
}

absl::Status QueueDriver::Adopt(absl::Span<const uint32_t> shards,
                                absl::Span<const uint32_t> connections) {
  return Recovery(*parts_).Adopt(shards, connections);
}

// Idempotent: the successor of a driver that died here is given the event again.
bool QueueDriver::HandleDeviceEvent(uint32_t* shard) {
  *shard = kNoShard;
  DriverState& state = parts_->state;
  verbs::DeviceEvent event;
  if (!state.device->NextDeviceEvent(&event)) return false;
  BATON_CRASH_POINT("driver-device-event-taken");
  const uint32_t connection = state.FindQueuePair(event.qp_number);
  if (connection == DriverObserver::kNoConnection) return true;
  if (event.type == verbs::DeviceEventType::kLastWorkRequestReached) {
    parts_->teardown.FinishDraining(connection);
  }
  if (event.type == verbs::DeviceEventType::kQueuePairFailed) {
    // Perhaps no request is outstanding that would complete with an error.
    parts_->teardown.StartDraining(connection, verbs::CompletionStatus::kGeneralError, event.text);
    *shard = state.ShardOf(state.record(connection));
    state.shards[*shard].log.Publish();
  }
  return true;
}

void QueueDriver::GiveUp(uint32_t shard, std::string_view why) {
  parts_->teardown.AbandonAll(shard, why);
  // Logs earlier completions if they can be polled.
  absl::StatusOr<bool> took = true;
  while (took.ok() && *took) took = PollCompletions(shard);
  if (took.ok()) return;
  parts_->teardown.FinishAbandoned(shard);
  parts_->state.shards[shard].log.Publish();
}

void QueueDriver::ForgetUnacknowledged(uint32_t shard) {
  arena::CommitEntry all = {};
  all.acknowledged = parts_->state.arena->shard(shard).completion_tail;
  parts_->commits.ApplyAcknowledge(shard, all);
}

}  // namespace baton::driver
