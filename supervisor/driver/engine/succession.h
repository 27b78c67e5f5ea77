// Decides which worker owns each shard of a service, and which is next. ShardDrivers carry that out
// and note in the arena what they did, which this class reads there and tells operators.
#ifndef SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_
#define SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/latency_histogram.h"
#include "lib/driver/ownership.h"
#include "supervisor/driver/engine/engine_listener.h"
#include "supervisor/driver/engine/reconciliation.h"
#include "supervisor/driver/engine/roster.h"
#include "supervisor/driver/engine/shard_drivers.h"
#include "supervisor/driver/engine/worker_wakes.h"

namespace baton::driver_process {

struct ShardOwner {
  uint64_t epoch = 0;
  uint64_t worker_id = 0;  // 0: nobody
  uint32_t slot = arena::kNobody;
  uint64_t heir_id = 0;  // 0: nobody is named
};

// Thread-compatible: the engine's thread. It never waits. Methods are virtual for engines of tests.
class Succession {
 public:
  using HandoffDone = std::function<void(absl::Status, double blackout_us)>;

  // `arena` and `listener` outlive it.
  Succession(arena::Arena* arena, EngineListener* listener, bool outside_effects);
  virtual ~Succession() = default;
  // Call it before any other method. `drivers` outlives it.
  void SetDrivers(ShardDrivers* drivers) { drivers_ = drivers; }

  // ---- Workers. A call has no effect if the slot is not that worker's any more.

  // `wake`: the driver's end of a socket pair. A byte in either direction wakes the other side. An
  // eventfd would let a worker consume the driver's signals and make its writes block.
  virtual void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                         Standing standing);
  virtual void SetStanding(uint32_t slot, uint64_t id, Standing standing);
  // Asks the worker, through the arena, to end.
  virtual void AskToStop(uint32_t slot, uint64_t id);
  virtual void SetReady(uint32_t slot);  // and again after it gave a shard back unasked
  // `silent`: the worker has shown no sign of life for long. A silent worker does not become a
  // successor.
  virtual void SetSilent(uint32_t slot, uint64_t id, bool silent);
  // Returns true if the worker can be given a shard.
  virtual bool IsReady(uint32_t slot) const { return Roster::CanServe(roster_[slot]); }
  // Returns true if the worker owns no shard and none is on its way to it. Always false in a native
  // service, because its heirs take shards without asking.
  virtual bool IsIdle(uint32_t slot, uint64_t id) const;
  // Gives the worker no shard any more, or does so again. A worker for which IsIdle() is true after
  // Settle() stays idle.
  virtual void Retire(uint32_t slot, uint64_t id, bool retired);
  // Has the drivers carry out all that was decided, and notices what they did. False: one has not
  // answered in time.
  bool Settle();
  // Called when all registered threads of the worker are dead, or it has detached: it writes no
  // more.
  virtual void WorkerEnded(uint32_t slot, uint64_t id, std::string_view cause);
  // Returns true if the worker wrote something invalid: it is not believed before its process is
  // dead. Always false in a native service, where the driver is in the worker's process and ends
  // it.
  bool IsFenced(uint32_t slot) const { return roster_[slot].fenced; }
  // The worker is about to die, and no completion is the cause: blames none for it.
  virtual void PardonDeath(uint32_t slot, uint64_t id);
  // The worker is about to die: reports name this cause ("hang"), a literal, instead of "crash".
  virtual void ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause);
  // Called when the worker's process is gone. The slot may be used again after this.
  virtual void WorkerDead(uint32_t slot, uint64_t id);

  // ---- Shards.

  // Notices what the drivers have done, and gives shards that have no owner to a worker. Call it
  // after they did something or, if they do not tell, often.
  void LookAtShards();

  // Moves `shard` to the worker in `slot`. Calls `done` when that worker has committed for the
  // first time, or with the reason why the shard did not move.
  virtual void Handoff(uint32_t shard, uint32_t slot, HandoffDone done);
  virtual void CancelHandoff(uint32_t shard, const absl::Status& why);

  // Returns the owner or, in a native service, the claimant.
  virtual ShardOwner owner(uint32_t shard) const;
  const LatencyHistogram& handoff_blackout(uint32_t shard) const {
    return shards_[shard].handoff_blackout;
  }
  const LatencyHistogram& failover_blackout(uint32_t shard) const {
    return shards_[shard].failover_blackout;
  }
  const ReconciliationReport& last_report(uint32_t shard) const { return shards_[shard].report; }
  const std::string& waiting_reason(uint32_t shard) const { return shards_[shard].waiting_reason; }
  uint64_t poisoned_connections(uint32_t shard) const;
  // When this object last noticed a new owner's first commit; CLOCK_MONOTONIC. 0: never.
  uint64_t last_served_ns() const { return last_served_ns_; }

  // Called in a process that follows a dead one, from which it was forked. It reports again what
  // the dead one has reported since the fork.
  void TakeOver();

  Roster& roster() { return roster_; }
  WorkerWakes& wakes() { return wakes_; }
  const driver::Ownership& ownership(uint32_t shard) const { return shards_[shard].ownership; }
  // Returns the slot of the shard's owner or claimant; kNobody: there is none, or a native worker
  // wrote an invalid slot.
  uint32_t ClaimantOrOwner(uint32_t shard) const;
  // Notes why the last worker could not be run. SetReady() clears it.
  void NoteFailure(std::string why) { last_failure_ = std::move(why); }

 protected:
  Roster roster_;
  WorkerWakes wakes_;

 private:
  // A shard's changes, as far as they are known. The first four are epochs.
  struct Known {
    uint64_t epoch = 0;           // the last whose owner is known
    uint64_t served = 0;          // the last whose first commit is known
    uint64_t released = 0;        // the last whose release is known
    uint64_t reported = 0;        // the last whose end was reported
    uint64_t report_version = 0;  // in the arena, of the shard's report
  };
  struct ShardState {
    explicit ShardState(driver::Ownership owner) : ownership(owner) {}
    driver::Ownership ownership;
    Known known;
    std::string waiting_reason = "no worker is ready";
    uint32_t state_version = 0;  // written by its last owner that declared one; 0: none did
    uint64_t asked_epoch = 0;    // the last whose owner was asked to release
    uint64_t handoff_worker_id = 0;
    HandoffDone handoff_done;
    LatencyHistogram handoff_blackout, failover_blackout;
    ReconciliationReport report;
  };

  // Each returns whether something has changed that heirs depend on.
  bool NoteEnds();
  bool LookAt(uint32_t shard);
  bool NoteOwner(uint32_t shard);
  bool NoteRelease(uint32_t shard);
  bool NoteFirstCommit(uint32_t shard, bool gone);

  bool IsFencedId(uint64_t id) const;
  bool VacateBroken(uint32_t shard);
  void ReadReports(uint32_t shard);
  bool ReadReport(uint32_t shard, uint64_t epoch);
  std::string CauseOf(uint32_t shard, const ReconciliationReport& report) const;
  void TellEnd(uint32_t shard);  // reports the end that the shard's report is about

  // Gives the shard, which has no owner, to the best worker, if there is one.
  void Give(uint32_t shard);
  void NameHeirs();
  void NameHeir(uint32_t shard, uint32_t slot);  // kNobody: none
  // Returns the slot of the best worker; kNobody: there is none, and waiting_reason says why.
  uint32_t ChooseFor(uint32_t shard);
  Roster::Vacancy VacancyOf(uint32_t shard) const;
  void CountShards();

  // Notes that the worker has ended, so that it gets no shard any more. Returns false if the slot
  // is another worker's, or the end of this one was noted before.
  bool NoteEnded(uint32_t slot, uint64_t id);
  // Called when the owner of `epoch` has committed for the first time.
  void OnServed(uint32_t shard, uint64_t epoch, uint64_t owner);
  // Called when the worker has given the shard back instead of serving it.
  void OnGivenBack(uint32_t shard, uint64_t worker_id);
  void FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us);

  uint32_t shard_count() const { return static_cast<uint32_t>(shards_.size()); }

  arena::Arena* const arena_;
  EngineListener* const listener_;
  const bool outside_effects_;
  ShardDrivers* drivers_ = nullptr;
  std::vector<ShardState> shards_;
  std::string last_failure_;
  // Workers whose death is known to be no crash, and its cause.
  std::deque<std::pair<uint64_t, std::string_view>> explanations_;
  uint64_t last_served_ns_ = 0;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_
