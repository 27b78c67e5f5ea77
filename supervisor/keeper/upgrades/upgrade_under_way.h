// One replacement of a service's workers by those of another program, while it goes on.
//
// The new program is started beside the old one. When all its workers are ready and healthy, the
// shards are handed to them, one after the other as in any planned handoff. From then on they are
// watched, with the old workers standing by, warm and named as heirs: if a new one dies, hangs (it
// is then killed), turns unhealthy or gives a shard back, every shard goes back, and the new
// workers are ended. A dead owner's shards do not wait for that: the engine gives them to the heir
// at once. After the watch window the old workers are ended. This class decides everything, because
// control may be dead.
//
//   STARTING -> HANDING_OVER -> WATCHING -> RETIRING -> COMPLETED
//        \            \             \-> RETURNING -> ROLLED_BACK, or
//         \------------\---------------> RETURNING -> FAILED, when no shard was handed over
//
// A worker that takes over by itself (take_overs.h) is the new side of an upgrade that starts no
// process. All else is the same.
//
// With canary shards these go first: HANDING_OVER -> CANARY -> HANDING_OVER -> WATCHING. A pause
// keeps the upgrade from going on to the next phase, not from returning.
#ifndef SUPERVISOR_KEEPER_UPGRADES_UPGRADE_UNDER_WAY_H_
#define SUPERVISOR_KEEPER_UPGRADES_UPGRADE_UNDER_WAY_H_

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/sessions/worker_session.h"
#include "supervisor/keeper/upgrades/handoffs.h"
#include "supervisor/keeper/upgrades/shard_transfer.h"
#include "supervisor/keeper/upgrades/upgrade_record.h"
#include "supervisor/keeper/upgrades/upgrade_workers.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread. Made by std::make_shared. The caller holds a
// reference during each call, because any call may end the upgrade.
class UpgradeUnderWay : public std::enable_shared_from_this<UpgradeUnderWay> {
 public:
  // `on_over` is called once, at the end, if Start() was successful. `on_change` is called when
  // Held() has changed, which the next keeper needs to continue.
  struct Callbacks {
    std::function<void()> on_over;
    std::function<void()> on_change;
  };
  UpgradeUnderWay(const KeeperParts& context, uint64_t id, ProgramChange change,
                  const v1::UpgradePlan& plan, Callbacks callbacks);

  // Starts the new processes. Call it once. `done` is called once, from the loop: with OK when the
  // new processes run. After an error the upgrade has not begun, and the caller drops it. Once the
  // processes are started, `on_change` is called, and the next keeper can continue the upgrade.
  void Start(std::function<void(const absl::Status&)> done);

  // Begins the upgrade with `worker`, which is attached and has asked for all shards. Call it once,
  // and not Start(). `on_change` is called.
  void StartWith(const WorkerInfo& worker);

  // The next keeper calls Continue() once, and not Start(), with what Held() returned. The upgrade
  // continues in the same phase, and goes back if shards were on their way.
  internal::HeldUpgrade Held() const;
  void Continue(const internal::HeldUpgrade& held);

  // Each returns kFailedPrecondition if the upgrade has not begun, or it is too late for that.
  // SetPaused also returns it if `paused` is false and the upgrade is not paused.
  absl::Status Undo();
  absl::Status SetPaused(bool paused);

  const UpgradeRecord& record() const { return record_; }
  // Returns whether a new worker is of this process.
  bool HasNew(pid_t pid) const { return FindProcess(workers_.ListNew(), pid) != nullptr; }
  v1::Upgrade Describe() const;

  // These methods behave like WorkerObserver's. OnAttached returns kFirst if the worker is none of
  // the new ones, except for one of the old version once the old workers retire.
  Standing OnAttached(uint64_t worker_id, pid_t pid);
  void OnReady(uint64_t worker_id);
  void OnGone(uint64_t worker_id, const std::string& kill_cause);

 private:
  // Starting.
  void OnLaunched(uint32_t count);
  void OnProcessEnded(const internal::StartedWorker& process);
  void Advance();

  // Going on.
  void HandOver();
  void Move(const std::vector<ShardMove>& moves,
            void (UpgradeUnderWay::*next)(const HandoffsResult&));
  void OnHandedOver(const HandoffsResult& result);
  // Returns for the end of a new worker that is reported soon, or for `otherwise`.
  void AwaitEnd(const std::string& otherwise);
  void LookAtNewWorkers();
  void OnWindowOver();

  // Ending.
  void Return(const std::string& why);
  void OnReturned(const HandoffsResult& result);
  void Retire();
  void End(const std::set<uint64_t>& worker_ids);
  void KillOverdue();
  void CheckEnded();
  v1::UpgradePhase Outcome() const;
  void Finish(v1::UpgradePhase phase, const std::string& detail);

  void EnterPhase(v1::UpgradePhase phase, std::chrono::milliseconds limit);
  void ContinuePhase();
  void NoteChange() const { callbacks_.on_change(); }
  void Tick();
  void TickLater();

  using TimePoint = std::chrono::steady_clock::time_point;

  const KeeperParts context_;
  const Callbacks callbacks_;
  UpgradeRecord record_;
  UpgradeWorkers workers_;
  ShardTransfer transfer_;
  TimePoint deadline_;  // of the phase
  TimePoint last_tick_;
  TimePoint ready_since_;      // all new workers are; none: not yet
  std::string why_not_moved_;  // a shard, because a new worker has ended; empty: none has
  bool ending_ = false;        // workers were asked to end: the deadline is theirs
  bool killed_ = false;        // workers that did not end were killed
  bool over_ = false;
  boost::asio::steady_timer timer_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_UPGRADE_UNDER_WAY_H_
