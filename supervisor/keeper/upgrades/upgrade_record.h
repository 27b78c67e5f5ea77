// What a keeper knows of one upgrade: what was asked for, how far it is, and its events.
#ifndef SUPERVISOR_KEEPER_UPGRADES_UPGRADE_RECORD_H_
#define SUPERVISOR_KEEPER_UPGRADES_UPGRADE_RECORD_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/event_log.h"

namespace baton::keeper {

struct ProgramChange {
  // Unknown, and not needed, in a rollback. Both are empty in a take-over if they cannot be read.
  internal::Program from;
  internal::Program to;
  bool rollback = false;
  std::string taken_over_by = {};  // as Upgrade's
};

// Thread-compatible: the management loop's thread.
class UpgradeRecord {
 public:
  // `events` outlives it. The times that `plan` leaves out are those of `service`.
  UpgradeRecord(EventLog& events, const v1::ServiceConfig& service, uint64_t id,
                ProgramChange change, const v1::UpgradePlan& plan);

  // The next keeper calls Continue() with what Hold() filled.
  void Hold(internal::HeldUpgrade* held) const;
  void Continue(const internal::HeldUpgrade& held);

  const ProgramChange& change() const { return change_; }
  const v1::UpgradePlan& plan() const { return plan_; }  // with all times
  v1::Upgrade& status() { return status_; }
  const v1::Upgrade& status() const { return status_; }
  v1::UpgradePhase phase() const { return status_.phase(); }
  bool begun() const { return begun_; }  // the new processes were entered
  void set_begun(bool begun) { begun_ = begun; }

  // What gets the shards, in words: the new program, or the worker that asked for them.
  const std::string& Goal() const {
    return status_.taken_over_by().empty() ? status_.exec() : status_.taken_over_by();
  }
  std::string PhaseInWords() const;
  std::string Progress() const;  // which it is and how far, in words

  // Each returns kFailedPrecondition if the upgrade has not begun, or it is too late for that.
  // Resume also returns it if the upgrade is not paused.
  absl::Status CheckUndoable() const;
  absl::Status Pause();
  absl::Status Resume();
  // Returns false if the plan has no pause after the canary window, or has had it.
  bool PauseAfterCanary();

  // The event carries the trace of the present request or, if there is none, of the one that began
  // the upgrade.
  void AddEvent(const std::string& kind, const std::string& message);
  void Finish(v1::UpgradePhase outcome, const std::string& detail);

 private:
  absl::Status CheckBegun() const;
  absl::Status CheckHoldable() const;

  EventLog& events_;
  const ProgramChange change_;
  std::string trace_parent_;  // of the request that began it
  v1::UpgradePlan plan_;
  v1::Upgrade status_;
  bool begun_ = false;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_UPGRADE_RECORD_H_
