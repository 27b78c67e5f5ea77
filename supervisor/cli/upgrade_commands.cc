#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/base/status.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/plan.h"
#include "supervisor/cli/upgrades.h"

namespace baton {
namespace {

constexpr char kWaitingFooter[] =
    "Exit code 0 only when it went as asked; 1, with the keeper's reason, when it did not. It "
    "happens in the service's keeper: it goes on when this command, or control, is interrupted.";

struct UpgradeOptions {
  std::string service;
  std::string exec;
  uint32_t workers = 0;  // 0: as many as are ready
  double ready_seconds = 0;
  double watch_seconds = 0;  // 0, as above: the service's
  bool no_rollback = false;
  std::string canary;  // shards, or a share of them; empty: none
  double canary_seconds = 0;
  bool pause_after_canary = false;
  double max_blackout_ms = 0;
  uint64_t min_completions = 0;
  bool no_wait = false;
  bool baton = false;  // upgrade Baton's own processes, not a service's program
  Change change;
};

uint32_t Milliseconds(double seconds) { return static_cast<uint32_t>(seconds * 1000); }

// With a socket the keeper is on this machine, and so is the program, but only the keeper knows
// whether it may start it. With --address only the keeper knows its machine's files.
absl::StatusOr<std::string> FindProgram(const Invocation& invocation, const std::string& path) {
  if (!invocation.tls.address.empty()) {
    if (path.starts_with("/")) return path;
    return absl::InvalidArgumentError(
        absl::StrCat("--exec ", path, ": with --address it has to be an absolute path, there"));
  }
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return absl::NotFoundError(absl::StrCat("--exec ", path, ": ", error.message()));
  std::string found = absolute.lexically_normal().string();
  struct stat status;
  if (stat(found.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return ErrnoStatus(errno, absl::StrCat("--exec: there is no program ", found));
    }
    return found;
  }
  if (!S_ISREG(status.st_mode) || (status.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--exec: ", found, " is not a program: it is no regular file with permission to execute"));
  }
  return found;
}

void SayWhatNext(Invocation* invocation, const std::string& service, const v1::Upgrade& upgrade) {
  if (!IsOver(upgrade)) {
    invocation->PrintNext(absl::StrCat("`baton upgrades list ", service,
                                       " --watch` follows it, `baton rollback ", service,
                                       "` undoes it"));
  } else if (upgrade.phase() == v1::UPGRADE_PHASE_COMPLETED) {
    if (upgrade.rollback()) return;  // there may be no further step back
    invocation->PrintNext(
        absl::StrCat("`baton rollback ", service, "` returns to the program before"));
  } else {
    invocation->PrintNext(absl::StrCat("`baton events ", service, "` shows what happened"));
  }
}

// Waits for the outcome, unless --no-wait, and prints it.
template <typename Response>
absl::Status Follow(Invocation* invocation, const UpgradeOptions& options, Response response,
                    bool undo) {
  v1::Upgrade* upgrade = response.mutable_upgrade();
  absl::Status status;
  if (!options.no_wait) {
    BATON_ASSIGN_OR_RETURN(*upgrade, WaitUntilOver(invocation, options.service, *upgrade));
    status = Judge(invocation, options.service, *upgrade, undo);
  }
  if (invocation->json) {
    invocation->PrintJson(response).IgnoreError();
  } else {
    PrintUpgrade(invocation->out, options.service, *upgrade, invocation->style);
    SayWhatNext(invocation, options.service, *upgrade);
  }
  return status;
}

// Finds, in the keeper's list, the upgrade of a request whose answer was lost with control.
absl::StatusOr<v1::UpgradeResponse> FindBegun(Invocation* invocation, const UpgradeOptions& options,
                                              const v1::ListUpgradesResponse& before,
                                              const absl::Status& lost) {
  BATON_RETURN_IF_ERROR(invocation->Reconnect().status());
  BATON_ASSIGN_OR_RETURN(v1::ListUpgradesResponse now, ListUpgrades(invocation, options.service));
  const uint64_t last = before.upgrades().empty() ? 0 : before.upgrades(0).id();
  if (now.upgrades().empty() || now.upgrades(0).id() <= last) return lost;
  v1::UpgradeResponse response;
  *response.mutable_version() = now.version();
  response.mutable_upgrade()->Swap(now.mutable_upgrades(0));
  return response;
}

// Parses "0,3" or "25%". A share is at least one shard, and never all.
absl::Status SetCanary(Invocation* invocation, const UpgradeOptions& options,
                       v1::UpgradePlan* plan) {
  const std::string& canary = options.canary;
  const auto wrong = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "--canary ", canary, ": give shards, such as 0,2, or a share of them, such as 25%"));
  };
  plan->set_canary_window_ms(Milliseconds(options.canary_seconds));
  plan->set_pause_after_canary(options.pause_after_canary);
  if (canary.empty()) return absl::OkStatus();
  uint32_t number = 0;
  if (canary.back() != '%') {
    for (const absl::string_view word : absl::StrSplit(canary, ',')) {
      if (!absl::SimpleAtoi(word, &number)) return wrong();
      plan->add_canary_shards(number);
    }
    return absl::OkStatus();
  }
  if (!absl::SimpleAtoi(absl::StripSuffix(canary, "%"), &number) || number == 0 || number > 99) {
    return wrong();
  }
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse response,
                         invocation->AskService(options.service));
  const uint32_t shards = response.service().shard_count();
  if (shards < 2) {
    return absl::FailedPreconditionError(absl::StrCat("--canary ", canary, ": service \"",
                                                      options.service,
                                                      "\" has one shard, which cannot be shared"));
  }
  const uint32_t share = std::min((shards * number + 99) / 100, shards - 1);
  for (uint32_t shard = 0; shard < share; ++shard) plan->add_canary_shards(shard);
  return absl::OkStatus();
}

absl::Status Upgrade(Invocation* invocation, UpgradeOptions options) {
  if (options.baton) {
    if (options.workers != 0 || options.pause_after_canary || options.canary_seconds > 0 ||
        options.no_wait || options.no_rollback || options.ready_seconds > 0 ||
        invocation->program_arguments) {
      return absl::InvalidArgumentError(
          "--baton replaces Baton's own processes: it takes --canary SERVICES, --watch-window and "
          "--dry-run, and nothing that is about a service's program");
    }
    return UpgradeBaton(invocation, {options.service, options.canary, options.watch_seconds,
                                     options.change.dry_run});
  }
  if (options.exec.empty()) {
    return absl::InvalidArgumentError(
        "--exec PATH names the new program of a service; --baton replaces Baton's own processes");
  }
  v1::UpgradeRequest request;
  v1::UpgradePlan* plan = request.mutable_plan();
  BATON_ASSIGN_OR_RETURN(*plan->mutable_exec(), FindProgram(*invocation, options.exec));
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kChange, &options.service));
  request.set_service(options.service);
  if (invocation->program_arguments) {
    plan->set_replace_arguments(true);
    const std::vector<std::string>& arguments = *invocation->program_arguments;
    plan->mutable_arguments()->Add(arguments.begin(), arguments.end());
  }
  plan->set_workers(options.workers);
  plan->set_ready_timeout_ms(Milliseconds(options.ready_seconds));
  plan->set_watch_window_ms(Milliseconds(options.watch_seconds));
  plan->set_no_rollback(options.no_rollback);
  BATON_RETURN_IF_ERROR(SetCanary(invocation, options, plan));
  if (options.max_blackout_ms > 0 || options.min_completions > 0) {
    plan->mutable_gates()->set_max_blackout_us(options.max_blackout_ms * 1000);
    plan->mutable_gates()->set_min_completions(options.min_completions);
  }
  if (options.change.dry_run) {
    return PrintPlan(invocation, PlanUpgrade(invocation, &request), request);
  }
  BATON_ASSIGN_OR_RETURN(const v1::ListUpgradesResponse before,
                         ListUpgrades(invocation, options.service));
  absl::StatusOr<v1::UpgradeResponse> response = invocation->Ask(&Operator::Upgrade, request);
  if (absl::IsUnavailable(response.status()) || absl::IsCancelled(response.status())) {
    response = FindBegun(invocation, options, before, response.status());
  }
  BATON_RETURN_IF_ERROR(response.status());
  return Follow(invocation, options, *std::move(response), /*undo=*/false);
}

absl::Status Rollback(Invocation* invocation, UpgradeOptions options) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kChange, &options.service));
  auto request = About<v1::RollbackRequest>(options.service);
  request.set_ready_timeout_ms(Milliseconds(options.ready_seconds));
  request.set_watch_window_ms(Milliseconds(options.watch_seconds));
  request.set_no_rollback(options.no_rollback);
  if (options.change.dry_run) {
    return PrintPlan(invocation, PlanRollback(invocation, request), request);
  }
  BATON_ASSIGN_OR_RETURN(const v1::ListUpgradesResponse before,
                         ListUpgrades(invocation, options.service));
  absl::StatusOr<v1::RollbackResponse> response = invocation->Ask(&Operator::Rollback, request);
  if (absl::IsUnavailable(response.status()) || absl::IsCancelled(response.status())) {
    return absl::UnavailableError(absl::StrCat(
        response.status().message(),
        "; whether it was begun is not known: see `baton upgrades list ", options.service, "`"));
  }
  BATON_RETURN_IF_ERROR(response.status());
  const auto& known = before.upgrades();
  const bool undo = std::any_of(known.begin(), known.end(), [&](const v1::Upgrade& one) {
    return IsSame(one, response->upgrade());
  });
  return Follow(invocation, options, *std::move(response), undo);
}

struct UpgradeFilter {
  std::string service;
  std::string state;  // a phase, in the words of FormatState

  bool Passes(const v1::Upgrade& upgrade) const {
    if (state.empty()) return true;
    if (state == "running") return !IsOver(upgrade);
    return absl::StrReplaceAll(FormatState(upgrade.phase()), {{" ", "-"}}) == state;
  }
};

absl::Status UpgradeHistory(Invocation* invocation, UpgradeFilter filter) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kLook, &filter.service));
  BATON_ASSIGN_OR_RETURN(v1::ListUpgradesResponse response,
                         ListUpgrades(invocation, filter.service));
  const bool none = response.upgrades().empty();
  KeepIf(response.mutable_upgrades(),
         [&](const v1::Upgrade& upgrade) { return filter.Passes(upgrade); });
  if (invocation->json) return invocation->PrintJson(response);
  if (response.upgrades().empty()) {
    invocation->err << (none ? absl::StrCat("service ", filter.service,
                                            " was not upgraded since its driver started\n")
                             : "no such upgrades\n");
    return absl::OkStatus();
  }
  Table table({">UPGRADE", "VERSIONS", "STARTED", ">TOOK", ">BLACKOUT", "+>RETURN", "+KIND",
               "+OLD WORKERS", "+NEW WORKERS", "+PROGRAM", "!PHASE"},
              invocation->style);
  for (const v1::Upgrade& upgrade : response.upgrades()) {
    const char* const begun = upgrade.taken_over_by().empty() ? "upgrade" : "take-over";
    table.Add({upgrade.id(), FormatVersions(upgrade), FormatSeconds(upgrade.started_unix_micros()),
               FormatElapsed(upgrade), FormatMove(upgrade.slowest_blackout_us()),
               FormatMove(upgrade.slowest_return_us()), upgrade.rollback() ? "rollback" : begun,
               absl::StrJoin(upgrade.old_worker_ids(), ","),
               absl::StrJoin(upgrade.new_worker_ids(), ","), FormatProgram(upgrade),
               FormatProgress(upgrade)});
  }
  table.Print(invocation->out);
  return absl::OkStatus();
}

// Pauses the upgrade under way, or lets it go on.
absl::Status PauseOrResume(Invocation* invocation, UpgradeOptions options, bool pause) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kChange, &options.service));
  const std::string& service = options.service;
  const auto request = About<v1::PauseUpgradeRequest>(service);
  if (options.change.dry_run) {
    return PrintPlan(invocation, PlanPause(invocation, service, pause), request);
  }
  const auto tell = [&](const auto& response, const std::string& next) -> absl::Status {
    BATON_RETURN_IF_ERROR(response.status());
    if (invocation->json) return invocation->PrintJson(*response);
    PrintUpgrade(invocation->out, service, response->upgrade(), invocation->style);
    invocation->PrintNext(next);
    return absl::OkStatus();
  };
  if (pause) {
    return tell(invocation->Ask(&Operator::PauseUpgrade, request),
                absl::StrCat("`baton upgrades resume ", service,
                             "` lets it go on, `baton rollback ", service, "` undoes it"));
  }
  return tell(invocation->Ask(&Operator::ResumeUpgrade, About<v1::ResumeUpgradeRequest>(service)),
              absl::StrCat("`baton upgrades list ", service, " --watch` follows it"));
}

void AddLimits(CLI::App* command, UpgradeOptions* options, Invocation* invocation) {
  AddSeconds(command, "--ready-timeout", &options->ready_seconds, 3600,
             "seconds to be ready and healthy [the service's]");
  AddSeconds(command, "--watch-window", &options->watch_seconds, 86400,
             "seconds that the old one stands by [the service's]");
  command->add_flag("--no-rollback", options->no_rollback,
                    "no return by itself: the old program ends at once");
  command->add_flag("--no-wait", options->no_wait, "do not wait for its end");
  AddChangeOptions(command, &options->change, /*asks=*/false, invocation);
  command->footer(kWaitingFooter);
}

void AddCanaryOptions(CLI::App* command, UpgradeOptions* options) {
  command
      ->add_option("--canary", options->canary, "move these first, as 0,2 or 25%, and watch them")
      ->type_name("SHARDS");
  AddSeconds(command, "--canary-window", &options->canary_seconds, 86400,
             "seconds before the others follow [as --watch-window]");
  command->add_flag("--pause-after-canary", options->pause_after_canary,
                    "then wait for `baton upgrades resume`");
  command
      ->add_option("--max-blackout", options->max_blackout_ms,
                   "undo it when a shard's move takes longer")
      ->type_name("MS")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--min-completions", options->min_completions,
                   "undo it when it deals with fewer in a window")
      ->type_name("COUNT")
      ->check(CLI::PositiveNumber);
}

void AddUpgradesCommands(CLI::App* app, Invocation* invocation) {
  CLI::App* noun = AddNoun(app, "upgrades", "Upgrades of a service: list, pause, resume");
  CLI::App* list = noun->add_subcommand("list", "Show a service's upgrades, newest first");
  auto filter = std::make_shared<UpgradeFilter>();
  list->add_option("service", filter->service, kTheirService);
  AddChoice(list, "--state", &filter->state, {"running", "completed", "rolled-back", "failed"},
            "only those in this state");
  AddListingOptions(list, invocation);
  OnChosen(list, invocation, filter, UpgradeHistory);
  for (const bool pause : {true, false}) {
    CLI::App* command = noun->add_subcommand(
        pause ? "pause" : "resume",
        pause ? "Keep the upgrade under way from going further, not from going back"
              : "Let a paused upgrade go on");
    auto options = std::make_shared<UpgradeOptions>();
    command->add_option("service", options->service, kItsService);
    AddChangeOptions(command, &options->change, /*asks=*/false, invocation);
    OnChosen(command, invocation, options,
             [pause](Invocation* asking, const UpgradeOptions& chosen) {
               return PauseOrResume(asking, chosen, pause);
             });
  }
}

}  // namespace

void AddUpgradeCommands(CLI::App* app, Invocation* invocation) {
  auto options = std::make_shared<UpgradeOptions>();
  CLI::App* upgrade = app->add_subcommand(
      "upgrade",
      "Replace a service's program.\nbaton upgrade [SERVICE] --exec PATH [-- ARGUMENTS]");
  upgrade->add_option("service", options->service, "the service [the only one]");
  upgrade->add_option("--exec", options->exec, "the new program; \"-- ARGUMENTS\" replaces its own")
      ->type_name("PATH");
  upgrade
      ->add_flag("--baton", options->baton, "replace its keeper and driver code [all but drivers]")
      ->excludes("--exec");
  upgrade->add_option("--workers", options->workers, "how many to start [as many as are ready]")
      ->type_name("COUNT")
      ->check(CLI::PositiveNumber);
  AddCanaryOptions(upgrade, options.get());
  AddLimits(upgrade, options.get(), invocation);
  upgrade->callback([invocation, options] {
    invocation->takes_program_arguments = true;
    invocation->action = [invocation, options] { return Upgrade(invocation, *options); };
  });

  CLI::App* rollback = app->add_subcommand(
      "rollback", "Undo the upgrade under way, or return to the program before");
  rollback->add_option("service", options->service, "the service [the only one]");
  AddLimits(rollback, options.get(), invocation);
  OnChosen(rollback, invocation, options, Rollback);

  AddUpgradesCommands(app, invocation);
}

}  // namespace baton
