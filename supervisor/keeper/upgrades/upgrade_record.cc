#include "supervisor/keeper/upgrades/upgrade_record.h"

#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/text/text.h"
#include "supervisor/keeper/upgrades/upgrade_plan.h"

namespace baton::keeper {
namespace {

// Operators see at most this many of a program's arguments.
constexpr int kMaxArguments = 128;
constexpr size_t kMaxArgumentBytes = 1024;

}  // namespace

UpgradeRecord::UpgradeRecord(EventLog& events, const v1::ServiceConfig& service, uint64_t id,
                             ProgramChange change, const v1::UpgradePlan& plan)
    : events_(events),
      change_(std::move(change)),
      trace_parent_(events.trace_parent()),
      plan_(WithTimesOf(service, plan)) {
  status_.set_id(id);
  status_.set_exec(change_.to.path());
  for (const std::string& argument : change_.to.arguments()) {
    if (status_.arguments_size() == kMaxArguments) break;
    *status_.add_arguments() = OneLine(argument, kMaxArgumentBytes);
  }
  status_.set_rollback(change_.rollback);
  status_.set_taken_over_by(change_.taken_over_by);
  status_.set_no_rollback(plan.no_rollback());
  const std::set<uint32_t> canary(plan.canary_shards().begin(), plan.canary_shards().end());
  for (const uint32_t shard : canary) status_.add_canary_shards(shard);
}

void UpgradeRecord::Hold(internal::HeldUpgrade* held) const {
  *held->mutable_from() = change_.from;
  *held->mutable_to() = change_.to;
  *held->mutable_plan() = plan_;
  *held->mutable_status() = status_;
  held->set_trace_parent(trace_parent_);
}

void UpgradeRecord::Continue(const internal::HeldUpgrade& held) {
  status_ = held.status();
  trace_parent_ = held.trace_parent();
  plan_ = held.plan();
  begun_ = true;
}

std::string UpgradeRecord::PhaseInWords() const {
  switch (phase()) {
    case v1::UPGRADE_PHASE_STARTING:
      return "waits until its workers are ready";
    case v1::UPGRADE_PHASE_HANDING_OVER:
      return "hands the shards over";
    case v1::UPGRADE_PHASE_WATCHING:
      return "is in its watch window";
    case v1::UPGRADE_PHASE_CANARY:
      return "has its canary shards";
    case v1::UPGRADE_PHASE_RETURNING:
      return "is being undone";
    default:
      return "waits for the end of the old workers";
  }
}

std::string UpgradeRecord::Progress() const {
  return absl::StrCat("upgrade ", status_.id(), " to ", Goal(), " is under way (it ",
                      PhaseInWords(), ")");
}

absl::Status UpgradeRecord::CheckBegun() const {
  if (begun_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "upgrade ", status_.id(), " is about to start its processes: ask again in a moment"));
}

absl::Status UpgradeRecord::CheckUndoable() const {
  BATON_RETURN_IF_ERROR(CheckBegun());
  if (phase() != v1::UPGRADE_PHASE_RETIRING) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("upgrade ", status_.id(),
                   " has passed its watch window and ends its old workers: ask again in a moment"));
}

absl::Status UpgradeRecord::CheckHoldable() const {
  BATON_RETURN_IF_ERROR(CheckBegun());
  if (phase() != v1::UPGRADE_PHASE_RETURNING && phase() != v1::UPGRADE_PHASE_RETIRING) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("upgrade ", status_.id(), " ", PhaseInWords(), ": it cannot be held"));
}

absl::Status UpgradeRecord::Pause() {
  BATON_RETURN_IF_ERROR(CheckHoldable());
  if (!status_.paused()) AddEvent("upgrade_paused", "an operator asked for it");
  status_.set_paused(true);
  return absl::OkStatus();
}

absl::Status UpgradeRecord::Resume() {
  BATON_RETURN_IF_ERROR(CheckHoldable());
  if (!status_.paused()) {
    return absl::FailedPreconditionError(
        absl::StrCat("upgrade ", status_.id(), " is not paused: it goes on by itself"));
  }
  AddEvent("upgrade_resumed", "an operator asked for it");
  // Also cancels a pause that is planned for the end of the window: the operator has said to go on.
  if (phase() == v1::UPGRADE_PHASE_CANARY) plan_.clear_pause_after_canary();
  status_.set_paused(false);
  return absl::OkStatus();
}

bool UpgradeRecord::PauseAfterCanary() {
  if (!plan_.pause_after_canary()) return false;
  plan_.clear_pause_after_canary();
  AddEvent("upgrade_paused", "its canary window is over; `baton upgrades resume` lets it go on");
  status_.set_paused(true);
  return true;
}

void UpgradeRecord::AddEvent(const std::string& kind, const std::string& message) {
  const std::string asking = events_.trace_parent();
  const EventLog::TraceScope traced(events_, asking.empty() ? trace_parent_ : asking);
  events_.Add(kind, absl::StrCat("upgrade ", status_.id(), ": ", message));
}

void UpgradeRecord::Finish(v1::UpgradePhase outcome, const std::string& detail) {
  status_.set_phase(outcome);
  status_.set_detail(detail);
  status_.set_ended_unix_micros(UnixMicroseconds());
  if (outcome == v1::UPGRADE_PHASE_COMPLETED) {
    AddEvent("upgrade_completed", absl::StrCat(Goal(), " serves, its predecessor has ended"));
  } else {
    AddEvent(outcome == v1::UPGRADE_PHASE_ROLLED_BACK ? "upgrade_rolled_back" : "upgrade_failed",
             detail);
  }
}

}  // namespace baton::keeper
