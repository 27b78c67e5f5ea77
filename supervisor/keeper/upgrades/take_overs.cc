#include "supervisor/keeper/upgrades/take_overs.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/sessions/shard_owners.h"
#include "supervisor/keeper/sessions/worker_sessions.h"
#include "supervisor/keeper/upgrades/handoffs.h"
#include "supervisor/keeper/upgrades/upgrade_plan.h"

namespace baton::keeper {
namespace {

std::string NameOf(const WorkerInfo& worker) {
  const char* const separator = worker.name.empty() || worker.version.empty() ? "" : ", ";
  return absl::StrCat("worker ", worker.id, " (", worker.name, separator, worker.version, ")");
}

// Returns whether `worker` takes shards from `one`. In an upgrade, its process does.
bool TakesFrom(const WorkerInfo& one, const WorkerInfo& worker, bool all) {
  return all ? one.pid != worker.pid : one.id != worker.id;
}

}  // namespace

void TakeOvers::Ask(uint64_t worker_id, const internal::TakeOver& request, Begun begun) {
  const std::vector<WorkerInfo> workers = context_.workers.List();
  const WorkerInfo* const worker = FindWorker(workers, worker_id);
  if (worker == nullptr || !worker->ready) {
    return begun(absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker_id, " is not ready, or was asked to end: call Ready first")));
  }
  const absl::StatusOr<Shards> shards = ShardsOf(request);
  if (!shards.ok()) return begun(shards.status());
  const bool all = shards->size() == context_.config.service().shards();
  std::vector<WorkerInfo> others = workers;
  std::erase_if(others,
                [&](const auto& one) { return !one.ready || !TakesFrom(one, *worker, all); });
  if (HasNothingToTake(*worker, *shards, others)) return begun(absl::OkStatus());
  const absl::Status fit = Check(*worker, others, all);
  if (!fit.ok()) {
    NoteRefusal(*worker, fit);
    return begun(fit);
  }
  told_.clear();
  if (all) return upgrades_.TakeOver(*worker, NameOf(*worker), std::move(begun));
  Move(*worker, *shards);
  begun(absl::OkStatus());
}

absl::StatusOr<TakeOvers::Shards> TakeOvers::ShardsOf(const internal::TakeOver& request) const {
  const uint32_t count = context_.config.service().shards();
  Shards shards;
  for (const uint32_t shard : request.shards()) {
    if (shard >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("shards: there is no shard ", shard, ", the service has ", count));
    }
    shards.insert(shard);
  }
  if (!shards.empty()) return shards;
  for (uint32_t shard = 0; shard < count; ++shard) shards.insert(shard);
  return shards;
}

bool TakeOvers::HasNothingToTake(const WorkerInfo& worker, const Shards& shards,
                                 const std::vector<WorkerInfo>& others) const {
  if (context_.config.service().mode() == v1::NATIVE) return false;  // refused, with the reason
  if (upgrades_.HasNew(worker.pid) || context_.programs.PidfdOf(worker.pid)) return true;
  if (others.empty()) return true;
  const ShardOwners owners = OwnersOf(context_.driver);
  return absl::c_all_of(shards, [&](uint32_t shard) {
    const auto owner = owners.find(shard);
    return owner != owners.end() && FindWorker(others, owner->second) == nullptr;
  });
}

absl::Status TakeOvers::Check(const WorkerInfo& worker, const std::vector<WorkerInfo>& others,
                              bool all) const {
  const std::string& service = context_.config.service().name();
  if (context_.config.service().mode() == v1::NATIVE) {
    return absl::FailedPreconditionError(absl::StrCat(
        "service ", service, " is native, and its driver forks its workers: use `baton upgrade`"));
  }
  if (!context_.policies.policy().workers_may_take_over()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "policy.workers_may_take_over of service ", service,
        " is false: set it (`baton service policy`), or use `baton upgrade` or `baton handoff`"));
  }
  BATON_RETURN_IF_ERROR(upgrades_.CheckTakeOver(worker.version));
  if (drain_.Describe()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "service ", service, " is drained: end that first (`baton drain ", service, " --end`)"));
  }
  return CheckStateVersions(context_.driver, others, {worker}, /*to_take_back=*/all);
}

void TakeOvers::Move(const WorkerInfo& worker, const Shards& shards) {
  std::vector<ShardMove> moves;
  for (const uint32_t shard : shards) moves.push_back({shard, worker.slot});
  const std::string what =
      absl::StrCat(NameOf(worker), " takes over ", shards.size() == 1 ? "shard " : "shards ",
                   absl::StrJoin(shards, ", "), " by itself");
  context_.events.Add("take_over",
                      absl::StrCat(what, "; it is process ", worker.pid, " of user ", worker.uid),
                      worker.id);
  MoveShards(context_.loop, context_.driver, moves, context_.config.service().handoff_timeout_ms(),
             [context = context_, what, id = worker.id](const HandoffsResult& result) {
               if (result.status.ok()) return;
               context.events.Add("take_over_failed",
                                  absl::StrCat(what, ": ", View(MessageOf(result.status))), id);
             });
}

void TakeOvers::NoteRefusal(const WorkerInfo& worker, const absl::Status& why) {
  std::string text = absl::StrCat(NameOf(worker), " of user ", worker.uid,
                                  " may not take over: ", View(MessageOf(why)));
  if (text == told_) return;
  told_ = std::move(text);
  context_.events.Add("take_over_refused", told_, worker.id);
}

}  // namespace baton::keeper
