// The shards of a native service, as `baton-driver` has them moved: their heirs claim them. This
// class claims shards without owner in a worker's name, and takes dead workers out of the words.
#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_SHARDS_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_SHARDS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "supervisor/driver/engine/shard_drivers.h"

namespace baton::driver_process {

// Thread-compatible: the driver process's one thread.
class NativeShards final : public ShardDrivers {
 public:
  // `arena` outlives it. `wake`: wakes the worker in a slot.
  NativeShards(arena::Arena* arena, std::function<void(uint32_t slot)> wake);

  bool heirs_claim() const override { return true; }
  void OnHeir(uint32_t shard, uint32_t slot) override;
  std::string Give(uint32_t shard, uint32_t slot) override;
  void OnEnded() override {}
  void OnDead(uint32_t slot) override;

 private:
  const std::function<void(uint32_t slot)> wake_;
  std::vector<driver::Ownership> ownerships_;  // by shard
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_SHARDS_H_
