#include "lib/native/local_driver.h"

#include <numeric>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/status.h"

namespace baton::native {

absl::StatusOr<std::unique_ptr<LocalDriver>> LocalDriver::Create(arena::Arena* arena,
                                                                 verbs::Device* device,
                                                                 LocalObserver* observer) {
  std::unique_ptr<LocalDriver> local(new LocalDriver(arena, device, observer));
  const auto wake_driver = [raw = local.get()](uint32_t) { raw->noticed_ = true; };
  BATON_ASSIGN_OR_RETURN(
      local->manager_,
      ConnectionManager::Create(
          arena, device, local.get(),
          arena::IsNative(arena->shape()) ? Pools::kInAdvance : Pools::kOnDemand, wake_driver));
  BATON_ASSIGN_OR_RETURN(local->driver_, local->MakeSuccessor());
  return local;
}

LocalDriver::~LocalDriver() {
  driver_.reset();
  device_.reset();
}

template <typename Work>
void LocalDriver::CarryOut(const Work& work) {
  carrying_out_ = true;
  work();
  carrying_out_ = false;
}

// The former driver's objects and the event that it was handling are dropped without effect. Its
// notice is still in the ring.
absl::StatusOr<std::unique_ptr<driver::QueueDriver>> LocalDriver::MakeSuccessor() {
  device_.reset();
  noticed_ = true;
  device_ = std::make_unique<NativeDevice>(NativeDevice::Context{
      .arena = arena_,
      .device = real_device_,
      .pool = &manager_->pool(),
      .objects = objects(),
      .wake_driver = [this] { CarryOut([this] { manager_->CarryOutOrders(); }); },
      .tell = [](std::string_view) { BATON_CHECK(false); },  // nobody else writes the pool's states
      .destroy =
          [this](uint32_t shard, uint32_t number) {
            CarryOut([&] { manager_->DestroyQueuePair(shard, number); });
          }});
  auto driver = driver::QueueDriver::Create(arena_, device_.get(), this, manager_->objects());
  std::vector<uint32_t> shards(arena_->shape().shards), connections(arena_->shape().connections);
  std::iota(shards.begin(), shards.end(), 0);
  std::iota(connections.begin(), connections.end(), 0);
  device_->Restore(shards, connections);
  BATON_RETURN_IF_ERROR(driver->Adopt(shards, connections));
  return driver;
}

void LocalDriver::OnSlotFree(uint32_t connection) {
  const absl::Status freed = device_->FreeSlot(connection);
  BATON_CHECK(freed.ok());  // nobody else writes the ring
}

}  // namespace baton::native
