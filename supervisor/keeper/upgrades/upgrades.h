// Replaces a service's workers by those of another program. Keeps the upgrade that is under way,
// former ones, and the programs to which an operator can return.
#ifndef SUPERVISOR_KEEPER_UPGRADES_UPGRADES_H_
#define SUPERVISOR_KEEPER_UPGRADES_UPGRADES_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/sessions/worker_sessions.h"
#include "supervisor/keeper/upgrades/upgrade_record.h"
#include "supervisor/keeper/upgrades/upgrade_under_way.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class Upgrades : private WorkerObserver {
 public:
  // How many upgrades, and programs to return to, are remembered.
  static constexpr size_t kHistory = 16;

  // Observes context.workers.
  explicit Upgrades(const KeeperParts& context);
  ~Upgrades() override;

  // Goes on with the upgrades of the former keeper. REQUIRES: the programs are restored.
  void Restore(const DriverClient::HeldByKey& held);

  // Called once, now or from the loop.
  using Done = std::function<void(const absl::StatusOr<v1::Upgrade>&)>;

  // Starts an upgrade. `done` receives it when its new processes run. kInvalidArgument names the
  // field. kFailedPrecondition: another is under way, no worker runs, or the program cannot be run.
  void Start(const v1::UpgradePlan& plan, Done done);

  // Begins an upgrade to `worker`, which has asked for all shards. Reads the programs first, for
  // Rollback and for operators, and goes on without one that cannot be read or whose arguments and
  // environment have more than 256 KiB. `by`: as Upgrade.taken_over_by. Calls `done` once, now or
  // from the loop. REQUIRES: CheckTakeOver.
  void TakeOver(const WorkerInfo& worker, const std::string& by,
                std::function<void(const absl::Status&)> done);
  // kFailedPrecondition: an upgrade is under way, or take-overs by this version have gone back and
  // no upgrade has completed since. A service manager that starts it again and again would move the
  // shards each time.
  absl::Status CheckTakeOver(const std::string& version) const;
  // Returns whether a new worker of the upgrade under way is of this process, or a take-over by the
  // process is about to begin.
  bool HasNew(pid_t pid) const;

  // Undoes the upgrade under way or, if there is none, starts one to the program before the present
  // one.
  void Rollback(const internal::Rollback& request, Done done);

  // Pauses or resumes the upgrade under way. kFailedPrecondition: there is none, it is returning or
  // retiring, or `paused` is false and it is not paused.
  absl::StatusOr<v1::Upgrade> SetPaused(bool paused);

  // kFailedPrecondition: an upgrade is under way. The message says how far it is and what can be
  // done.
  absl::Status CheckIdle() const;

  bool idle() const { return current_ == nullptr || !current_->record().begun(); }
  std::optional<v1::Upgrade> UnderWay() const;
  uint64_t last_id() const { return last_id_; }  // of those that were started; 0: none was
  std::vector<v1::Upgrade> List() const;         // the newest first; the one under way among them

 private:
  // Returns the worker whose place the new ones take.
  absl::StatusOr<uint64_t> CheckPlan(const v1::UpgradePlan& plan) const;
  absl::StatusOr<ProgramChange> PlanUpgrade(const v1::UpgradePlan& plan,
                                            absl::StatusOr<internal::Program> old_program) const;
  absl::StatusOr<ProgramChange> PlanReturn() const;
  void Begin(absl::StatusOr<ProgramChange> change, const v1::UpgradePlan& plan, Done done);
  absl::Status BeginTakeOver(pid_t pid, ProgramChange change);
  void GoOnFrom(const std::string& value);  // what is held of upgrades
  void OnOver();
  std::shared_ptr<UpgradeUnderWay> Make(uint64_t id, ProgramChange change,
                                        const v1::UpgradePlan& plan);
  void Hold() const;

  Standing OnAttached(uint64_t worker_id, pid_t pid) override;
  void OnReady(uint64_t worker_id) override;
  void OnGone(uint64_t worker_id, const std::string& kill_cause) override;

  const KeeperParts context_;
  std::shared_ptr<UpgradeUnderWay> current_;
  bool reads_program_ = false;                  // an upgrade is about to begin
  pid_t taking_over_ = 0;                       // the process whose take-over that is; 0: none
  std::deque<v1::Upgrade> history_;             // the newest first
  std::deque<internal::Program> predecessors_;  // of the program that serves; the last one first
  uint64_t last_id_ = 0;
  uint64_t take_over_failed_ns_ = 0;  // when the last take-over that failed ended; 0: none did
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_UPGRADES_H_
