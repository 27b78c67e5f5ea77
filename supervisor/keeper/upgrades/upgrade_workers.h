// The workers of one upgrade: the old ones, the new ones, and the processes started for these.
#ifndef SUPERVISOR_KEEPER_UPGRADES_UPGRADE_WORKERS_H_
#define SUPERVISOR_KEEPER_UPGRADES_UPGRADE_WORKERS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/sessions/worker_session.h"
#include "supervisor/keeper/upgrades/started_processes.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class UpgradeWorkers {
 public:
  // `on_end`: as StartedProcesses'.
  UpgradeWorkers(const KeeperParts& context,
                 std::function<void(const internal::StartedWorker&)> on_end);

  // The next keeper calls Continue() with what Hold() filled.
  void Hold(internal::HeldUpgrade* held) const;
  void Continue(const internal::HeldUpgrade& held);

  // Takes the workers that are ready for the old ones, and enters them in `upgrade`. Returns how
  // many processes to start: `planned` or, if that is 0, as many as there are old workers.
  // kResourceExhausted: they do not fit beside those attached.
  absl::StatusOr<uint32_t> TakeOld(uint32_t planned, v1::Upgrade* upgrade);
  // Takes the workers of the process of `worker`, which nobody has started for the upgrade, for the
  // new ones, and all others that are ready for the old ones. Enters them in `upgrade`. The new
  // ones stand last, as if they had attached as such.
  void TakeOver(const WorkerInfo& worker, v1::Upgrade* upgrade);
  StartedProcesses& processes() { return processes_; }

  // Takes an attached worker for a new one, and enters it in `upgrade`. Returns false, and does
  // nothing, if none of the processes is its, and no worker of its process took over.
  bool TakeNew(uint64_t worker_id, pid_t pid, v1::Upgrade* upgrade);
  // Returns whether the worker is none of the new ones and has the version of the old ones, and the
  // new ones have another. A unit may have started it again during the upgrade.
  bool HasOldVersion(uint64_t worker_id, const v1::Upgrade& upgrade) const;
  // Takes a worker that has become ready for an old one. Returns false, and does nothing, unless
  // HasOldVersion(), or if the worker was asked to end.
  bool TakeLateOld(uint64_t worker_id, const v1::Upgrade& upgrade);
  // Returns false if the worker that is gone is none of the old ones.
  bool ForgetOld(uint64_t worker_id) { return old_ids_.erase(worker_id) != 0; }
  // Returns what became of the worker that is gone; empty: it is none of the new ones.
  // `kill_cause`: as WorkerObserver's.
  std::string ForgetNew(uint64_t worker_id, const std::string& kill_cause);

  const std::set<uint64_t>& old_ids() const { return old_ids_; }
  const std::set<uint64_t>& new_ids() const { return new_ids_; }
  std::vector<WorkerInfo> ListOld() const { return Attached(old_ids_); }
  std::vector<WorkerInfo> ListNew() const { return Attached(new_ids_); }
  // Also those that attached during the upgrade, and of which nobody knows what they run.
  std::vector<WorkerInfo> ListAllButNew() const;

  // Both return a reason in words; empty: there is none.
  std::string WhyNotReady() const;
  std::string WhyNeverReady() const;  // for a process that has ended, or a worker that has left

 private:
  void EnterOld(pid_t but, v1::Upgrade* upgrade);
  std::vector<WorkerInfo> Attached(const std::set<uint64_t>& worker_ids) const;

  const KeeperParts context_;
  std::set<uint64_t> old_ids_, new_ids_;  // of those that are attached
  std::string lost_;                      // what became of the new worker that left last
  StartedProcesses processes_;
};

// Says that a process of an upgrade has ended before its worker was ready.
std::string EndedTooSoon(const internal::StartedWorker& process, const std::string& how);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_UPGRADE_WORKERS_H_
