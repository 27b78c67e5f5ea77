// Decides which worker owns each shard of a service, and who is next. What both kinds of service
// have in common is here. BrokeredSuccession and NativeSuccession have how a shard gets an owner,
// and how an ownership ends.
#ifndef SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_
#define SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/latency_histogram.h"
#include "lib/driver/ownership.h"
#include "supervisor/driver/engine/engine_listener.h"
#include "supervisor/driver/engine/reconciliation.h"
#include "supervisor/driver/engine/roster.h"

namespace baton::driver_process {

// An operator configures these for brokered and native services alike.
struct ServiceOptions {
  // A successor starts only when the whole former process is proven dead.
  bool outside_effects = false;
  // The engine's thread has this priority; in a native service, the workers' threads that notice
  // deaths have it. 0: none.
  int realtime_priority = 0;
  // Deaths on one completion after which its connection is failed.
  uint32_t poison_deaths = 3;
};

// The owner of a shard.
struct ShardOwner {
  uint64_t epoch = 0;
  uint64_t worker_id = 0;  // 0: nobody
  uint32_t slot = arena::kNobody;
  uint64_t heir_id = 0;  // 0: nobody is named
};

// Thread-compatible: the engine's thread.
class Succession {
 public:
  using HandoffDone = std::function<void(absl::Status, double blackout_us)>;

  // `arena` and `listener` outlive it.
  Succession(arena::Arena* arena, EngineListener* listener);
  virtual ~Succession() = default;

  // ---- Workers. The call has no effect if the slot is not that worker's any more.

  // `wake`: our end of a socket pair. A byte in either direction wakes the other side. An eventfd
  // would let a worker consume our signals and make our writes block.
  virtual void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                         Standing standing);
  virtual void SetStanding(uint32_t slot, uint64_t id, Standing standing);
  // Tells the worker in the arena that it should end.
  virtual void AskToStop(uint32_t slot, uint64_t id);
  virtual void SetReady(uint32_t slot);  // again, after it gave a shard back unasked
  // `stalled`: the worker has shown no sign of life for long. A stalled worker does not become a
  // successor.
  virtual void SetStalled(uint32_t slot, uint64_t id, bool stalled);
  // Returns true if the worker can be given a shard.
  virtual bool IsReady(uint32_t slot) const { return Roster::CanServe(roster_[slot]); }
  // Returns true if the worker owns no shard and none is on its way to it. Always false in a native
  // service, because its heirs take shards without asking.
  virtual bool IsIdle(uint32_t slot, uint64_t id) const = 0;
  // The worker is given no shard any more. One that is idle keeps being so if this follows in the
  // same turn.
  virtual void Retire(uint32_t slot, uint64_t id);
  // All its registered threads are dead, or it has detached: it writes no more.
  virtual void WorkerStopped(uint32_t slot, uint64_t id, std::string_view cause) = 0;
  // It wrote what is invalid, and is not believed before its process is dead. A native worker has
  // its driver in its process: what it wrote wrong ends it.
  bool IsFenced(uint32_t slot) const { return roster_[slot].fenced; }
  // Its death, which is to come, is somebody else's doing: no completion is blamed for it.
  virtual void PardonDeath(uint32_t slot, uint64_t id) = 0;
  // Its death, which is to come, has this cause in reports ("hang"), and not "crash". A literal.
  virtual void ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) = 0;
  // Its process is gone; the slot may be used again after this.
  virtual void WorkerDead(uint32_t slot, uint64_t id) = 0;

  // ---- Shards.

  // Moves `shard` to the worker in `slot`. `done` is called when it has committed for the first
  // time, or with why it did not come to that.
  virtual void Handoff(uint32_t shard, uint32_t slot, HandoffDone done);
  virtual void CancelHandoff(uint32_t shard, const absl::Status& why);

  // A claimant is as good as the owner.
  virtual ShardOwner owner(uint32_t shard) const;
  const LatencyHistogram& handoff_blackout(uint32_t shard) const {
    return shards_[shard].handoff_blackout;
  }
  const LatencyHistogram& failover_blackout(uint32_t shard) const {
    return shards_[shard].failover_blackout;
  }
  const ReconciliationReport& last_report(uint32_t shard) const { return shards_[shard].report; }
  const std::string& waiting_reason(uint32_t shard) const { return shards_[shard].waiting_reason; }
  virtual uint64_t poisoned_connections(uint32_t shard) const = 0;

  Roster& roster() { return roster_; }
  const driver::Ownership& ownership(uint32_t shard) const { return shards_[shard].ownership; }
  // Why the last worker could not be run; empty: one was ready since.
  void NoteFailure(std::string why) { last_failure_ = std::move(why); }

 protected:
  struct ShardState {
    explicit ShardState(driver::Ownership owner) : ownership(owner) {}
    driver::Ownership ownership;
    std::string waiting_reason = "no worker is ready";
    uint32_t state_version = 0;  // that its last owner who declared one writes; 0: none did
    uint64_t asked_epoch = 0;    // the last that was asked to release
    uint64_t handoff_worker_id = 0;
    HandoffDone handoff_done;
    LatencyHistogram handoff_blackout, failover_blackout;
    ReconciliationReport report;
  };

  // Gives the shard, which has no owner, to the best worker, if there is one.
  virtual void Give(uint32_t shard) = 0;
  // The same for all shards without owner.
  virtual void GiveVacant() = 0;
  // What is known of the shard's last owner is about to be forgotten.
  virtual void BeforeHandoff(uint32_t /*shard*/) {}
  // Asks the owner of `asked_epoch`.
  virtual void AskRelease(uint32_t shard);
  // `slot`: kNobody for none.
  virtual void NameHeir(uint32_t shard, uint32_t slot);

  uint32_t shard_count() const { return static_cast<uint32_t>(shards_.size()); }
  void NameHeirs();
  // Slot of the shard's owner or claimant; kNobody. Native workers write the word.
  uint32_t Holder(uint32_t shard) const;
  // Slot of the best worker; kNobody: there is none, and waiting_reason says why.
  uint32_t ChooseFor(uint32_t shard);
  void NoteOwner(uint32_t shard, const Roster::Worker& worker);
  // Marks the holder for the roster's next WakeNotified, because it has something new.
  void NotifyHolder(uint32_t shard);
  // Returns the worker, which takes no shard any more. Null: it is another, or was stopped before.
  Roster::Worker* Stop(uint32_t slot, uint64_t id);
  // The owner of `epoch` has committed for the first time. `planned`: the former one had released.
  void OnServed(uint32_t shard, uint64_t epoch, uint64_t ended_epoch, bool planned,
                uint64_t blackout_ns);
  // The worker has given the shard back instead of serving it.
  void OnGivenBack(uint32_t shard, uint64_t worker_id);
  void TellEnd(uint32_t shard);  // of the ownership that the shard's report is about

  arena::Arena* const arena_;
  EngineListener* const listener_;
  std::vector<ShardState> shards_;
  Roster roster_;

 private:
  void FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us);
  Roster::Vacancy VacancyOf(uint32_t shard) const;

  std::string last_failure_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_
