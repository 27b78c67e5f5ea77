// The shards of a brokered service, as its engine moves them between workers: ends an ownership,
// reports the work requests that were outstanding, and gives the shard to its heir. What it has to
// do and what it has done is in the arena, so another one can go on where it stopped.
#ifndef SUPERVISOR_DRIVER_ENGINE_BROKERED_SHARDS_H_
#define SUPERVISOR_DRIVER_ENGINE_BROKERED_SHARDS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/base/clock.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/engine_listener.h"
#include "supervisor/driver/engine/service_options.h"
#include "supervisor/driver/engine/shard_change.h"
#include "supervisor/driver/engine/shard_drivers.h"
#include "supervisor/driver/engine/shard_reports.h"
#include "supervisor/driver/engine/worker_wakes.h"

namespace baton::driver_process {

struct BrokeredOptions : ServiceOptions {
  // Test builds only: forgets unacknowledged completions when a shard changes hands.
  bool break_recovery = false;
  // A bit for each worker slot: it has released a shard, and Succession has not looked since. The
  // next driver has to find it. Null: there is none, and this one keeps it.
  std::atomic<uint64_t>* releasers = nullptr;
  std::function<uint64_t()> nanoseconds = MonotonicNanoseconds;  // a simulation has its own time
  // A simulation sets this, so that the driver can die in `work`: `go_on` is then called, for the
  // one that follows it.
  using Work = std::function<void()>;
  std::function<void(const Work& work, const Work& go_on)> outlive;
};

// Returns why a shard that nobody owns has to wait for its heir; empty: it does not.
std::string WhyGivingWaits(const arena::Arena& arena, const driver::Ownership& ownership,
                           bool outside_effects);

// Thread-compatible: the thread that drives the shards.
class BrokeredShards final : public ShardDrivers {
 public:
  // Applies the next transaction of the shard, like QueueDriver::ApplyNext. The engine provides it.
  using ApplyNext = std::function<driver::CommitOutcome(uint32_t shard, absl::Status* error)>;

  // The pointers outlive it. `wakes`: of the workers.
  BrokeredShards(arena::Arena* arena, EngineListener* listener, WorkerWakes* wakes,
                 const BrokeredOptions& options, ApplyNext apply_next);
  // Call it before any other method. `driver` outlives it.
  void SetDriver(driver::QueueDriver* driver);
  void SetPoisonDeaths(uint32_t deaths) { options_.poison_deaths = deaths; }

  // Finishes what was begun by another one, which is dead: nothing that it had in its heap counts.
  // If this one dies in this call, the next repeats it.
  void GoOn();

  bool heirs_claim() const override { return false; }
  void OnHeir(uint32_t, uint32_t) override {}
  std::string Give(uint32_t shard, uint32_t slot) override;
  void OnEnded() override;
  void OnDead(uint32_t slot) override;

  // Called when the owner's next transaction was applied. `released`: that transaction gave the
  // shard up, and the shard may have a successor already.
  void OnCommit(uint32_t shard, bool released);
  // Called when the owner's next transaction was invalid. The worker loses all its shards.
  void OnInvalidCommit(uint32_t shard, const absl::Status& why);

  const driver::Ownership& ownership(uint32_t shard) const { return ownerships_[shard]; }
  // Returns true if the shard's owner has not committed anything yet.
  bool AwaitsFirstCommit(uint32_t shard) const { return awaits_first_commit_[shard] != 0; }
  // Returns whether OnCommit or OnInvalidCommit have done something since the last call that
  // Succession::LookAtShards is to notice.
  bool TakeNews() { return std::exchange(has_news_, false); }
  // Called when Succession is about to look, or has looked, at all that was taken: which workers
  // have released a shard.
  void ForgetReleases() { releasers_.store(0); }
  // Does what Succession has decided since the last call.
  void CarryOut();
  // See DriverObserver.
  bool OnSettled(uint32_t connection, bool receive, uint64_t end) {
    return reports_.OnSettled(connection, receive, end);
  }

 private:
  // An owner's end, to be reported once its successor was woken.
  struct Ended {
    uint32_t shard = 0;
    std::optional<Poisoning> poisoned;  // the connection that was failed, if it died of a message
  };

  void Run(const BrokeredOptions::Work& work);
  void TakeFromEnded();
  void TakeFrom(uint32_t slot);
  void FreeBanksOfTheDead();
  void OnReleased(uint32_t shard);
  void ApplyAcceptsInto(uint32_t shard);
  Ended End(uint32_t shard);
  void Report(Ended ended);
  void NoteFirstCommit(const driver::Ownership& ownership);
  void ReportIfDue(const driver::Ownership& ownership);
  std::string GiveToHeir(uint32_t shard);
  void GiveAllToHeirs();
  bool HasEnded(uint32_t slot) const;
  bool HasReleased(uint64_t slot) const { return (releasers_.load() >> slot & 1) != 0; }
  uint32_t shard_count() const { return static_cast<uint32_t>(ownerships_.size()); }

  arena::Arena& arena_;
  EngineListener* const listener_;
  WorkerWakes& wakes_;
  BrokeredOptions options_;
  const ApplyNext apply_next_;
  driver::QueueDriver* driver_ = nullptr;
  std::vector<driver::Ownership> ownerships_;  // by shard
  std::vector<uint8_t> awaits_first_commit_;   // likewise
  std::atomic<uint64_t> own_releasers_{0};
  std::atomic<uint64_t>& releasers_;  // a bit for each worker slot, since ForgetReleases()
  ShardReports reports_;
  std::optional<ShardChange> change_;  // set with the driver
  bool has_news_ = false;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_BROKERED_SHARDS_H_
