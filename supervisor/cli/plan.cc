#include "supervisor/cli/plan.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/upgrades.h"

namespace baton {
namespace {

bool IsReady(const v1::Worker& worker) { return worker.state() == v1::WORKER_STATE_READY; }

// "worker 1 (kv-old 1.0, pid 4712) of service kv"
std::string WorkerName(const std::string& service, const v1::Worker& worker) {
  return absl::StrCat("worker ", worker.id(), " (", worker.name(), " ", worker.version(), ", pid ",
                      worker.pid(), ") of service ", service);
}

// Says which workers would follow in the shards that `worker` owns.
absl::StatusOr<std::string> Heirs(Invocation* invocation, const std::string& service,
                                  const v1::Worker& worker) {
  if (worker.shards().empty()) return "it owns no shard";
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse described, invocation->AskService(service));
  std::map<uint64_t, std::vector<uint32_t>> shards;  // by heir; 0: none
  for (const v1::Shard& shard : described.shards()) {
    if (shard.owner_worker_id() == worker.id()) {
      shards[shard.heir_worker_id()].push_back(shard.index());
    }
  }
  std::vector<std::string> parts;
  for (const auto& [heir, inherited] : shards) {
    const bool one = inherited.size() == 1;
    parts.push_back(absl::StrCat(
        "its shard", one ? " " : "s ", absl::StrJoin(inherited, ", "),
        heir == 0 ? absl::StrCat(one ? " waits" : " wait", " for a worker that is ready")
                  : absl::StrCat(one ? " goes" : " go", " to worker ", heir)));
  }
  return absl::StrJoin(parts, ", ");
}

absl::Status CheckIdle(const v1::Service& service) {
  if (!service.has_upgrade()) return absl::OkStatus();
  const v1::Upgrade& upgrade = service.upgrade();
  return absl::FailedPreconditionError(absl::StrCat(
      "upgrade ", upgrade.id(), " to ", upgrade.exec(), " is under way (", FormatProgress(upgrade),
      "): wait until it has ended, or undo it with `baton rollback ", service.name(), "`"));
}

// Chooses like a keeper: the newest worker that is ready and does not own the first shard.
absl::StatusOr<uint64_t> Successor(const v1::GetServiceResponse& described,
                                   const v1::HandoffRequest& request) {
  const uint64_t wanted = request.to_worker_id();
  const uint32_t first = request.shards().empty() ? 0 : *absl::c_min_element(request.shards());
  const uint64_t owner = described.shards(static_cast<int>(first)).owner_worker_id();
  uint64_t newest = 0;
  for (const v1::Worker& worker : described.workers()) {
    if (wanted == 0) {
      if (worker.id() != owner && IsReady(worker)) newest = std::max(newest, worker.id());
    } else if (worker.id() == wanted) {
      if (IsReady(worker)) return wanted;
      return absl::FailedPreconditionError(absl::StrCat("worker ", wanted, " is not ready"));
    }
  }
  if (newest != 0) return newest;
  if (wanted != 0) {
    return absl::NotFoundError(absl::StrCat("worker ", wanted, " is not attached"));
  }
  return absl::FailedPreconditionError(
      "no other worker is ready to take over: start one and wait until it is ready");
}

absl::Status CheckShards(const v1::GetServiceResponse& described,
                         const v1::HandoffRequest& request) {
  for (const uint32_t shard : request.shards()) {
    if (shard < static_cast<uint32_t>(described.shards_size())) continue;
    return absl::NotFoundError(absl::StrCat("service \"", request.service(), "\" has no shard ",
                                            shard, ": it has ", described.shards_size(),
                                            ", numbered from 0"));
  }
  return described.shards().empty() ? absl::FailedPreconditionError("the service has no shards")
                                    : absl::OkStatus();
}

std::string Window(uint32_t watch_window_ms, bool no_rollback) {
  if (no_rollback) return "end the old program at once, without a way back";
  return absl::StrCat("watch it for ",
                      watch_window_ms == 0 ? "the service's watch window"
                                           : FormatDuration(watch_window_ms / 1000.0),
                      ", with the old program standing by");
}

// Returns how many programs before the present one a keeper with this history knows.
int Predecessors(const v1::ListUpgradesResponse& history) {
  int count = 0;
  for (const v1::Upgrade& upgrade : history.upgrades()) {
    if (upgrade.phase() == v1::UPGRADE_PHASE_COMPLETED) count += upgrade.rollback() ? -1 : 1;
  }
  return count;
}

std::string Canary(const v1::UpgradePlan& plan) {
  if (plan.canary_shards().empty()) return "";
  const uint32_t window_ms = plan.canary_window_ms();
  return absl::StrCat(plan.canary_shards_size() == 1 ? "shard " : "shards ",
                      absl::StrJoin(plan.canary_shards(), ", "), " first and the others ",
                      window_ms == 0 ? "after the watch window"
                                     : absl::StrCat(FormatDuration(window_ms / 1000.0), " later"),
                      plan.pause_after_canary() ? " when it is resumed, " : ", ");
}

}  // namespace

absl::StatusOr<std::string> PlanStop(Invocation* invocation, const v1::StopWorkerRequest& request) {
  BATON_ASSIGN_OR_RETURN(const v1::GetWorkerResponse response,
                         AskWorker(invocation, request.service(), request.worker_id()));
  const v1::Worker& worker = response.worker();
  if (!worker.control_stream()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker.id(), " of service \"", request.service(),
        "\" has no stream to control, so it cannot be asked to end: wait until `baton worker list ",
        request.service(), " -o wide` shows its stream open, or end its process, pid ",
        worker.pid(), ", yourself: with SIGTERM if it minds that, or with `baton worker kill ",
        request.service(), " ", worker.id(), "`"));
  }
  BATON_ASSIGN_OR_RETURN(const std::string heirs, Heirs(invocation, request.service(), worker));
  return absl::StrCat("would ask ", WorkerName(request.service(), worker),
                      " to end, and wait up to ", FormatDuration(request.timeout_ms() / 1000.0),
                      "; ", heirs);
}

absl::StatusOr<std::string> PlanKill(Invocation* invocation, const v1::KillWorkerRequest& request) {
  BATON_ASSIGN_OR_RETURN(const v1::GetWorkerResponse response,
                         AskWorker(invocation, request.service(), request.worker_id()));
  const v1::Worker& worker = response.worker();
  BATON_ASSIGN_OR_RETURN(const std::string heirs, Heirs(invocation, request.service(), worker));
  return absl::StrCat("would send SIGKILL to ", WorkerName(request.service(), worker), "; ", heirs);
}

absl::StatusOr<std::string> PlanHandoff(Invocation* invocation, v1::HandoffRequest* request) {
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse described,
                         invocation->AskService(request->service()));
  BATON_RETURN_IF_ERROR(CheckShards(described, *request));
  BATON_RETURN_IF_ERROR(CheckIdle(described.service()));
  BATON_ASSIGN_OR_RETURN(const uint64_t successor, Successor(described, *request));
  request->set_to_worker_id(successor);
  const std::vector<uint32_t> asked(request->shards().begin(), request->shards().end());
  request->clear_shards();
  std::vector<std::string> parts;
  for (const v1::Shard& shard : described.shards()) {
    if (!asked.empty() && !absl::c_linear_search(asked, shard.index())) continue;
    request->add_shards(shard.index());
    parts.push_back(shard.owner_worker_id() == successor
                        ? absl::StrCat("leave shard ", shard.index(), ", which it owns")
                        : absl::StrCat("move shard ", shard.index(), " from ",
                                       FormatWorker(shard.owner_worker_id())));
  }
  return absl::StrCat("would hand over to worker ", successor, " of service ", request->service(),
                      ": ", absl::StrJoin(parts, ", "));
}

absl::StatusOr<std::string> PlanUpgrade(Invocation* invocation, v1::UpgradeRequest* request) {
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse described,
                         invocation->AskService(request->service()));
  BATON_RETURN_IF_ERROR(CheckIdle(described.service()));
  std::vector<uint64_t> ready;
  for (const v1::Worker& worker : described.workers()) {
    if (IsReady(worker)) ready.push_back(worker.id());
  }
  if (ready.empty()) {
    return absl::FailedPreconditionError(
        "no worker of the service is ready whose place the new ones could take, with its user, "
        "directory and arguments: start the new program as you did the first one");
  }
  v1::UpgradePlan* const plan = request->mutable_plan();
  if (plan->workers() == 0) plan->set_workers(static_cast<uint32_t>(ready.size()));
  return absl::StrCat(
      "would start ", plan->workers(), plan->workers() == 1 ? " process" : " processes", " of ",
      plan->exec(),
      plan->replace_arguments()
          ? absl::StrCat(" with arguments [", absl::StrJoin(plan->arguments(), " "), "]")
          : " with the arguments of the old program",
      " beside worker", ready.size() == 1 ? " " : "s ", absl::StrJoin(ready, ", "), " of service ",
      request->service(), ", hand ",
      FormatCount(static_cast<uint64_t>(described.shards_size()), "shard"),
      " over when it is ready and healthy, ", Canary(*plan), "and ",
      Window(plan->watch_window_ms(), plan->no_rollback()));
}

absl::StatusOr<std::string> PlanPause(Invocation* invocation, const std::string& service,
                                      bool pause) {
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse described, invocation->AskService(service));
  if (!described.service().has_upgrade()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no upgrade of service \"", service, "\" is under way"));
  }
  const v1::Upgrade& upgrade = described.service().upgrade();
  return absl::StrCat("would ", pause ? "pause" : "resume", " upgrade ", upgrade.id(),
                      " of service ", service, " to ", upgrade.exec(), " (",
                      FormatProgress(upgrade), ")");
}

absl::StatusOr<std::string> PlanRollback(Invocation* invocation,
                                         const v1::RollbackRequest& request) {
  BATON_ASSIGN_OR_RETURN(const v1::ListUpgradesResponse history,
                         ListUpgrades(invocation, request.service()));
  if (!history.upgrades().empty() && history.upgrades(0).ended_unix_micros() == 0) {
    const v1::Upgrade& upgrade = history.upgrades(0);
    if (upgrade.phase() == v1::UPGRADE_PHASE_RETIRING) {
      return absl::FailedPreconditionError(absl::StrCat(
          "upgrade ", upgrade.id(),
          " has passed its watch window and ends its old workers: ask again in a moment"));
    }
    return absl::StrCat("would undo upgrade ", upgrade.id(), " of service ", request.service(),
                        " to ", upgrade.exec(), " (", FormatProgress(upgrade),
                        "): its shards go back to worker",
                        upgrade.old_worker_ids_size() == 1 ? " " : "s ",
                        absl::StrJoin(upgrade.old_worker_ids(), ", "));
  }
  if (Predecessors(history) <= 0) {
    return absl::FailedPreconditionError(
        "no program before the present one is known: name one with `baton upgrade --exec`");
  }
  return absl::StrCat("would start the program before the present one of service ",
                      request.service(),
                      " again, hand all shards over when it is ready and healthy, "
                      "and ",
                      Window(request.watch_window_ms(), request.no_rollback()));
}

}  // namespace baton
