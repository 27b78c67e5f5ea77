#include "tests/simulation/keeper/sim_operator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::simulation {

using internal::ManagementRequest;

bool SimOperator::Step() {
  if (channel_ && Read()) return true;
  return !asked_ && !at_rest() && Ask();
}

// ---------------------------------------------------------------- asking

bool SimOperator::Ask() {
  if (!channel_) channel_ = around_.Connect("kv.keeper.sock", 0);
  if (!channel_) return false;
  ManagementRequest request;
  calm_ ? ChooseCalmRequest(&request) : ChooseRequest(&request);
  if (request.request_case() == ManagementRequest::REQUEST_NOT_SET) return false;
  request.set_id(++last_id_);
  around_.context.Note("an operator asks", static_cast<uint64_t>(request.request_case()));
  if (request.has_set_policy()) {
    policies_.insert(request.set_policy().policy().service().connections());
  }
  if (request.has_drain_service()) drains_.insert(true);
  if (request.has_end_drain()) drains_.insert(false);
  upgrades_unknown_ |= request.has_upgrade() || request.has_rollback();
  asked_ = std::move(request);
  (void)channel_->Enqueue(*asked_);
  return true;
}

void SimOperator::ChooseRequest(ManagementRequest* request) {
  Dice& dice = around_.context.dice;
  const std::vector<SimWorker*> all = workers();
  SimWorker* const worker =
      all.empty() ? nullptr : all[dice.Below(static_cast<uint32_t>(all.size()))];
  switch (dice.Below(16)) {
    case 0:
    case 1:
      return ChoosePolicy(request->mutable_set_policy()->mutable_policy());
    case 2:
      return request->mutable_drain_service()->set_deadline_ms(dice.OneIn(2) ? 0 : 500);
    case 3:
      return (void)request->mutable_end_drain();
    case 4:
    case 5:
    case 6:
      return ChoosePlan(request->mutable_upgrade());
    case 7:
      request->mutable_rollback()->set_ready_timeout_ms(300);
      return request->mutable_rollback()->set_watch_window_ms(100);
    case 8:
      return (void)request->mutable_pause_upgrade();
    case 9:
      return (void)request->mutable_resume_upgrade();
    case 10:
    case 11:
      request->mutable_handoff();
      if (worker != nullptr && dice.OneIn(2)) {
        request->mutable_handoff()->set_to_worker_id(worker->id());
      }
      return;
    case 12:
      if (worker == nullptr || worker->id() == 0) return;
      worker->NoteReason();
      return request->mutable_kill_worker()->set_worker_id(worker->id());
    case 13:
      if (dice.OneIn(4)) return (void)request->mutable_replace_keeper();
      [[fallthrough]];
    case 14:
      return (void)request->mutable_list_upgrades();
    default:
      return (void)request->mutable_describe();
  }
}

void SimOperator::ChooseCalmRequest(ManagementRequest* request) {
  if (ends_standbys_ && !standbys_ended_) {
    return ChoosePolicy(request->mutable_set_policy()->mutable_policy());
  }
  if (std::exchange(has_looked_, true) && looked_ == 0) return;  // before time has passed
  const bool paused = !upgrades_.empty() && upgrades_.front().paused();
  if (looked_ == 0 && paused) {
    upgrades_.front().set_paused(false);
    return (void)request->mutable_resume_upgrade();
  }
  looked_ == 1 ? (void)request->mutable_describe() : (void)request->mutable_list_upgrades();
}

void SimOperator::ChoosePolicy(v1::Policy* policy) {
  Dice& dice = around_.context.dice;
  policy->mutable_service()->set_connections(++last_policy_);
  policy->set_on_hang(dice.OneIn(4) ? v1::ON_HANG_REPORT : v1::ON_HANG_KILL);
  policy->set_hot_standbys(ends_standbys_ || !dice.OneIn(2) ? 0 : 1);
}

void SimOperator::ChoosePlan(v1::UpgradePlan* plan) {
  Dice& dice = around_.context.dice;
  constexpr char kKinds[] = {SimWorker::kGood, SimWorker::kGood,       SimWorker::kGood,
                             SimWorker::kDeaf, SimWorker::kNeverReady, SimWorker::kCrashes,
                             SimWorker::kHangs};
  plan->set_exec(
      absl::StrCat("/p/", ++last_program_, std::string(1, kKinds[dice.Below(sizeof(kKinds))])));
  plan->set_no_rollback(dice.OneIn(6));
  if (!plan->no_rollback() && dice.OneIn(3)) {
    plan->add_canary_shards(0);
    plan->set_pause_after_canary(dice.OneIn(2));
  }
}

// ---------------------------------------------------------------- answers

bool SimOperator::Read() {
  const absl::Status filled = channel_->Fill();
  bool any = false;
  internal::ManagementReply reply;
  for (;;) {
    const absl::StatusOr<bool> whole = channel_->NextFrame(&reply);
    if (!whole.ok() || !*whole) break;
    any = true;
    OnReply(reply);
  }
  if (filled.ok()) return any;
  around_.context.Note("an operator has lost the keeper");
  channel_.reset();
  asked_.reset();
  looked_ = 0;
  return true;
}

void SimOperator::OnReply(const internal::ManagementReply& reply) {
  if (!asked_ || reply.id() != asked_->id()) return;
  const ManagementRequest asked = *std::exchange(asked_, std::nullopt);
  const bool ok = reply.status_code() == 0;
  around_.context.Note("an operator is answered", static_cast<uint64_t>(asked.request_case()),
                       static_cast<uint64_t>(reply.status_code()));
  switch (asked.request_case()) {
    case ManagementRequest::kSetPolicy:
      if (!ok) {
        return around_.context.Break(absl::StrCat("no policy: ", reply.status_message()));
      }
      policies_ = {reply.policy().service().connections()};
      standbys_ended_ |= ends_standbys_;
      return;
    case ManagementRequest::kDrainService:
      if (ok) drains_ = {true};
      return;
    case ManagementRequest::kEndDrain:
      // It is said that there is none, too.
      drains_ = {false};
      return;
    case ManagementRequest::kUpgrade:
    case ManagementRequest::kRollback:
      upgrades_unknown_ = false;
      if (ok) accepted_.insert(reply.upgrades(0).id());
      no_upgrade_ = !ok && no_upgrade_;
      return;
    case ManagementRequest::kListUpgrades:
      return OnUpgrades(reply);
    case ManagementRequest::kDescribe:
      description_ = reply.description();
      if (looked_ == 1) ++looked_;
      return;
    default:
      return;
  }
}

void SimOperator::OnUpgrades(const internal::ManagementReply& reply) {
  upgrades_.assign(reply.upgrades().begin(), reply.upgrades().end());
  upgrades_unknown_ = false;
  no_upgrade_ = upgrades_.empty() || upgrades_.front().ended_unix_micros() != 0;
  looked_ = no_upgrade_ ? 1 : 0;
  std::set<uint64_t> listed;
  for (const v1::Upgrade& upgrade : upgrades_) {
    if (!listed.insert(upgrade.id()).second) {
      around_.context.Break(absl::StrCat("K5: upgrade ", upgrade.id(), " is listed twice"));
    }
  }
  for (const uint64_t id : accepted_) {
    if (listed.count(id) == 0) {
      around_.context.Break(absl::StrCat("K5: upgrade ", id, " was accepted, and nobody knows it"));
    }
  }
}

}  // namespace baton::simulation
