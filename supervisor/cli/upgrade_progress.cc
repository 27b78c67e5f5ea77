#include "supervisor/cli/upgrades.h"

#include <chrono>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

// Says what the upgrade does, and what it waits for.
std::string Awaited(const v1::Upgrade& upgrade, const std::string& service) {
  const bool returns = upgrade.phase() == v1::UPGRADE_PHASE_WATCHING && !upgrade.rollback();
  return absl::StrCat(FormatProgress(upgrade),
                      returns ? absl::StrCat("; `baton rollback ", service, "` undoes it") : "");
}

void Tell(const v1::Upgrade& upgrade, const std::string& name, const std::string& service,
          Progress* progress) {
  progress->Tell(
      Awaited(upgrade, service),
      absl::StrCat(name, ": ", FormatState(upgrade.phase()), upgrade.paused() ? ", paused" : "",
                   upgrade.detail().empty() ? "" : ": ", upgrade.detail()));
}

// Returns whether the new program serves. An upgrade that could not go back fails, and its program
// goes on serving.
absl::StatusOr<bool> NewProgramServes(Invocation* invocation, const std::string& service,
                                      const v1::Upgrade& upgrade) {
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse response, invocation->AskService(service));
  return absl::c_any_of(response.shards(), [&](const v1::Shard& shard) {
    return absl::c_linear_search(upgrade.new_worker_ids(), shard.owner_worker_id());
  });
}

}  // namespace

absl::StatusOr<v1::ListUpgradesResponse> ListUpgrades(Invocation* invocation,
                                                      const std::string& service) {
  return invocation->Ask(&Operator::ListUpgrades, About<v1::ListUpgradesRequest>(service));
}

bool IsOver(const v1::Upgrade& upgrade) { return upgrade.ended_unix_micros() != 0; }

// Compares times, too, because ids count from 1 again when the service's driver was started anew,
// or has dropped the state of crashing keepers.
bool IsSame(const v1::Upgrade& one, const v1::Upgrade& other) {
  return one.id() == other.id() && one.started_unix_micros() == other.started_unix_micros();
}

absl::StatusOr<v1::Upgrade> WaitUntilOver(Invocation* invocation, const std::string& service,
                                          v1::Upgrade upgrade) {
  const std::string name = absl::StrCat("upgrade ", upgrade.id(), " of service ", service);
  Progress progress(invocation, absl::StrCat("upgrade ", upgrade.id(), " of ", service),
                    Awaited(upgrade, service));
  Tell(upgrade, name, service, &progress);
  const auto patience = std::chrono::duration<double>(invocation->timeout_seconds);
  auto last_answer = Clock::now();
  while (!IsOver(upgrade)) {
    std::this_thread::sleep_for(kLookInterval);
    const auto list = ListUpgrades(invocation, service);
    if (!list.ok()) {
      const bool may_pass = absl::IsUnavailable(list.status()) &&
                            Clock::now() - last_answer < patience && invocation->Reconnect().ok();
      if (may_pass) continue;
      return absl::Status(
          list.status().code(),
          absl::StrCat(list.status().message(),
                       "; the upgrade goes on meanwhile: see `baton upgrades list ", service, "`"));
    }
    last_answer = Clock::now();
    const auto& all = list->upgrades();
    const auto found = absl::c_find_if(all, [&](const auto& one) { return IsSame(one, upgrade); });
    if (found == all.end()) {
      return absl::AbortedError(absl::StrCat(
          "the keeper of service \"", service, "\" knows nothing of upgrade ", upgrade.id(),
          " any more: its driver was started anew, and connections and workers with it, or keepers "
          "crashed in a row (see `baton events`)"));
    }
    upgrade = *found;
    Tell(upgrade, name, service, &progress);
  }
  return upgrade;
}

std::string FormatProgram(const v1::Upgrade& upgrade) {
  std::string program = upgrade.exec();
  if (!upgrade.taken_over_by().empty()) {
    program = absl::StrCat(upgrade.taken_over_by(), " took over by itself",
                           program.empty() ? "" : ": ", program);
  }
  return absl::StrCat(program, upgrade.arguments().empty() ? "" : " ",
                      absl::StrJoin(upgrade.arguments(), " "));
}

void PrintUpgrade(std::ostream& out, const std::string& service, const v1::Upgrade& upgrade,
                  const TableStyle& style) {
  PrintFields(out,
              {{upgrade.rollback() ? "Rollback" : "Upgrade",
                absl::StrCat(upgrade.id(), " of service ", service)},
               {"Program", FormatProgram(upgrade)},
               {"Versions", FormatVersions(upgrade)},
               {"!Phase", FormatState(upgrade.phase())},
               {"Detail", upgrade.detail()},
               {"Old workers", absl::StrJoin(upgrade.old_worker_ids(), ", ")},
               {"New workers", absl::StrJoin(upgrade.new_worker_ids(), ", ")},
               {"Started", FormatTime(upgrade.started_unix_micros())},
               {"Took", FormatElapsed(upgrade)},
               {"Slowest blackout", FormatMove(upgrade.slowest_blackout_us())},
               {"Slowest return", FormatMove(upgrade.slowest_return_us())}},
              style);
}

absl::Status Judge(Invocation* invocation, const std::string& service, const v1::Upgrade& upgrade,
                   bool undo) {
  const bool completed = upgrade.phase() == v1::UPGRADE_PHASE_COMPLETED;
  bool serves = completed;
  if (undo && !completed) {
    BATON_ASSIGN_OR_RETURN(serves, NewProgramServes(invocation, service, upgrade));
  }
  if (serves != undo) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("upgrade ", upgrade.id(), " of service \"", service,
                                         undo ? "\" was not undone" : "\" has not completed",
                                         upgrade.detail().empty() ? "" : ": ", upgrade.detail()));
}

}  // namespace baton
