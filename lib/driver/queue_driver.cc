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

absl::StatusOr<std::unique_ptr<QueueDriver>> QueueDriver::Create(arena::Arena* arena,
                                                                 verbs::Device* device,
                                                                 DriverObserver* observer) {
  BATON_ASSIGN_OR_RETURN(auto objects, CreateDeviceObjects(arena, device));
  std::unique_ptr<QueueDriver> driver(new QueueDriver(arena, device, observer, std::move(objects)));
  DriverState& state = driver->parts_->state;
  for (uint32_t i = 0; i < state.connection_slots; ++i) state.free_slots.push_back(i);
  for (ShardQueue& shard : state.shards) shard.operated = true;
  return driver;
}

absl::StatusOr<std::unique_ptr<QueueDriver>> QueueDriver::Recover(
    arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
    std::shared_ptr<DeviceObjects> objects) {
  std::unique_ptr<QueueDriver> driver(new QueueDriver(arena, device, observer, std::move(objects)));
  std::vector<uint32_t> all(arena->shape().shards);
  std::iota(all.begin(), all.end(), 0);
  BATON_RETURN_IF_ERROR(driver->Adopt(all));
  return driver;
}

std::unique_ptr<QueueDriver> QueueDriver::CreateBeside(arena::Arena* arena, verbs::Device* device,
                                                       DriverObserver* observer,
                                                       std::shared_ptr<DeviceObjects> objects) {
  std::unique_ptr<QueueDriver> driver(new QueueDriver(arena, device, observer, std::move(objects)));
  driver->parts_->state.sole = false;
  return driver;
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

bool QueueDriver::HandleDeviceEvent(uint32_t* shard) {
  *shard = kNoShard;
  DeviceObjects& objects = *parts_->state.objects;
  bool& has_event = objects.has_device_event;
  if (!has_event) has_event = parts_->state.device->NextDeviceEvent(&objects.device_event);
  if (!has_event) return false;
  BATON_CRASH_POINT("driver-device-event-taken");
  ApplyDeviceEvent(objects.device_event, shard);
  has_event = false;
  return true;
}

// Idempotent: the successor of a driver that died here calls it again.
void QueueDriver::ApplyDeviceEvent(verbs::DeviceEvent event, uint32_t* shard) {
  DriverState& state = parts_->state;
  uint32_t connection = DriverObserver::kNoConnection;
  if (event.qp_number != 0) connection = state.FindQueuePair(event.qp_number);
  if (event.type == verbs::DeviceEventType::kLastWorkRequestReached) {
    // Part of every end, so it is not reported.
    if (connection != DriverObserver::kNoConnection) parts_->teardown.FinishDraining(connection);
    return;
  }
  const uint32_t sharing = state.objects->ShardOf(event.shared_receive_queue);
  if (sharing != kNoShard) event.text = absl::StrCat("of shard ", sharing, ": ", event.text);
  state.observer->OnDeviceEvent(event, connection);
  if (sharing != kNoShard && event.type == verbs::DeviceEventType::kSharedReceiveQueueLow) {
    state.shards[sharing].limit_armed = false;
    state.shards[sharing].low_ns = MonotonicNanoseconds();
  }
  if (sharing != kNoShard && event.type == verbs::DeviceEventType::kSharedReceiveQueueFailed) {
    parts_->shared.Refuse(sharing, event.text);
    state.shards[sharing].log.Publish();
    *shard = sharing;
  }
  if (event.type == verbs::DeviceEventType::kQueuePairFailed &&
      connection != DriverObserver::kNoConnection) {
    // Perhaps no request is outstanding that would complete with an error.
    parts_->teardown.StartDraining(connection, verbs::CompletionStatus::kGeneralError, event.text);
    *shard = state.ShardOf(state.record(connection));
    state.shards[*shard].log.Publish();
  }
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
