// The succession of a native service: the workers move shards among themselves, in processes of
// their own. This class names heirs, gives shards that have no owner to a worker, asks owners to
// release, and notices in shared memory what the workers have done.
#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_SUCCESSION_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_SUCCESSION_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lib/arena/arena.h"
#include "supervisor/driver/engine/succession.h"

namespace baton::driver_process {

// Thread-compatible: the driver process's one thread. It never waits.
class NativeSuccession final : public Succession {
 public:
  // `outside_effects`: after a death, a successor starts only when the whole former process is
  // proven dead.
  // `wake`: wakes the worker in a slot.
  NativeSuccession(arena::Arena* arena, EngineListener* listener, bool outside_effects,
                   std::function<void(uint32_t slot)> wake);

  // Notices changes of owner that workers made among themselves. Call it often.
  void LookAtShards();
  void WakeClaimantOrOwner(uint32_t shard) const;

  bool IsIdle(uint32_t, uint64_t) const override { return false; }
  void WorkerEnded(uint32_t slot, uint64_t id, std::string_view cause) override;
  void PardonDeath(uint32_t slot, uint64_t id) override;
  void ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) override;
  void WorkerDead(uint32_t slot, uint64_t id) override;
  uint64_t poisoned_connections(uint32_t shard) const override;
  // When this object last noticed a new owner's first commit; CLOCK_MONOTONIC. 0: never.
  uint64_t last_served_ns() const { return last_served_ns_; }

 private:
  // The driver's knowledge of what workers have done to a shard. The first four are epochs.
  struct Known {
    uint64_t epoch = 0;     // the last whose owner is known
    uint64_t served = 0;    // the last whose first commit is known
    uint64_t released = 0;  // the last whose release is known
    uint64_t reported = 0;  // the last whose end was reported
    // An owner whose death is known to be no crash, and the death's cause.
    uint64_t explained_worker_id = 0;
    std::string_view explanation;
    uint64_t report_version = 0;  // in the arena, of the shard's report
  };

  void NoteRelease(uint32_t shard);
  void ReadReports(uint32_t shard);
  bool ReadReport(uint32_t shard, uint64_t epoch);
  void OnFirstCommit(uint32_t shard);
  void Give(uint32_t shard) override;
  void GiveVacant() override { LookAtShards(); }
  void BeforeHandoff(uint32_t shard) override { NoteRelease(shard); }
  void AskRelease(uint32_t shard) override;
  void NameHeir(uint32_t shard, uint32_t slot) override;

  const bool outside_effects_;
  const std::function<void(uint32_t slot)> wake_;
  std::vector<Known> known_;  // by shard
  uint64_t last_served_ns_ = 0;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_SUCCESSION_H_
