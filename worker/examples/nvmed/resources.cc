#include "worker/examples/nvmed/resources.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/nvmed/state.h"

namespace baton::nvmed {

absl::StatusOr<Resources> Resources::Make(const TargetConfig& config, const std::string& firmware,
                                          Worker& worker) {
  const Capacity& capacity = worker.capacity();
  if (capacity.shards != 1) {
    // A connection request does not name the controller whose queue it is to be.
    return absl::InvalidArgumentError(
        absl::StrCat("the service has ", capacity.shards, " shards: set shards to 1"));
  }
  if (capacity.shared_receive_queue_depth != 0) {
    return absl::InvalidArgumentError(
        "the service's connections share their receives: leave shared_receive_queue_depth out");
  }
  const absl::Span<uint8_t> buffers = worker.buffers();
  BATON_ASSIGN_OR_RETURN(const BufferPlan plan, BufferPlan::Make(config, capacity, buffers.size()));
  const uint32_t needed_state =
      sizeof(QueueState) + plan.queue_entries() * uint32_t{sizeof(PendingCommand)};
  if (capacity.connection_state_bytes < needed_state) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the service keeps ", capacity.connection_state_bytes,
        " bytes of state per connection: raise connection_state_bytes to ", needed_state));
  }
  Registry registry(capacity.shard_state_bytes);
  if (registry.controllers().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the service keeps ", capacity.shard_state_bytes,
        " bytes of state per shard: raise shard_state_bytes to ", sizeof(RegistryHeader), " and ",
        sizeof(ControllerState), " for each controller"));
  }
  BATON_RETURN_IF_ERROR(plan.Check(buffers));
  BATON_ASSIGN_OR_RETURN(Target target, Target::Open(config, plan, buffers));
  ControllerOptions options;
  options.queue_entries = static_cast<uint16_t>(plan.queue_entries());
  // One connection is the admin queue's.
  options.io_queues =
      static_cast<uint16_t>(std::min(config.io_queues(), std::max(capacity.connections, 2u) - 1));
  options.max_transfer_bytes = config.max_transfer_bytes();
  options.in_capsule_bytes = config.in_capsule_bytes();
  options.firmware = firmware;
  options.address = config.address();
  options.port = static_cast<uint16_t>(config.port());
  Deadlines deadlines(config.host_timeout_ms(), registry.controllers().size());
  return Resources{
      plan,    buffers, ChunkPool(), std::move(target), std::move(registry), std::move(deadlines),
      options, Fault()};
}

}  // namespace baton::nvmed
