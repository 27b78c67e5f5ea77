#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/session.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookInterval(100);  // while an upgrade is waited for

constexpr char kWaitingFooter[] =
    "Phases are told on standard error. Exit code 0 only when it went as asked; 1, with the "
    "keeper's\n"
    "reason, when it did not. Everything happens in the keeper of the service: it goes on when "
    "this\n"
    "command is interrupted, and when control is restarted, which is waited for within --timeout.";

struct Options {
  std::string service;
  std::string exec;
  uint32_t workers = 0;  // 0: as many as are ready
  double ready_seconds = 0;
  double watch_seconds = 0;  // 0, as above: the service's
  bool no_rollback = false;
  bool no_wait = false;
};

uint32_t Milliseconds(double seconds) { return static_cast<uint32_t>(seconds * 1000); }

bool IsOver(const v1::Upgrade& upgrade) { return upgrade.ended_unix_micros() != 0; }

// A keeper that was started anew counts from 1 again, at another time.
bool IsSame(const v1::Upgrade& one, const v1::Upgrade& other) {
  return one.id() == other.id() && one.started_unix_micros() == other.started_unix_micros();
}

// An operator's socket is on this machine, so the program is, too; but only the keeper knows
// whether it may start it.
absl::StatusOr<std::string> FindProgram(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return absl::NotFoundError(absl::StrCat("--exec ", path, ": ", error.message()));
  const std::string found = absolute.lexically_normal().string();
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

absl::StatusOr<v1::ListUpgradesResponse> ListUpgrades(Session* session,
                                                      const std::string& service) {
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::ListUpgradesRequest request;
  request.set_service(service);
  return client->ListUpgrades(request);
}

// Tells each phase once.
class PhasePrinter {
 public:
  PhasePrinter(Session* session, const std::string& service)
      : session_(session), service_(service) {}

  void Print(const v1::Upgrade& upgrade) {
    const std::string text = absl::StrCat(FormatState(upgrade.phase()),
                                          upgrade.detail().empty() ? "" : ": ", upgrade.detail());
    if (text == told_) return;
    told_ = text;
    session_->err << "upgrade " << upgrade.id() << " of service " << service_ << ": "
                  << Printable(text) << std::endl;
  }

 private:
  Session* const session_;
  const std::string service_;
  std::string told_;
};

// Until it is over. Control may be away in between; nobody waits for it longer than for any answer.
absl::StatusOr<v1::Upgrade> WaitUntilOver(Session* session, const std::string& service,
                                          v1::Upgrade upgrade) {
  PhasePrinter printer(session, service);
  printer.Print(upgrade);
  const auto patience = std::chrono::duration<double>(session->timeout_seconds);
  auto last_answer = Clock::now();
  while (!IsOver(upgrade)) {
    std::this_thread::sleep_for(kLookInterval);
    const auto list = ListUpgrades(session, service);
    if (!list.ok()) {
      const bool may_pass = absl::IsUnavailable(list.status()) &&
                            Clock::now() - last_answer < patience && session->Reconnect().ok();
      if (may_pass) continue;
      return absl::Status(
          list.status().code(),
          absl::StrCat(list.status().message(),
                       "; the upgrade goes on meanwhile: see `baton upgrades ", service, "`"));
    }
    last_answer = Clock::now();
    const auto& all = list->upgrades();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& one) { return IsSame(one, upgrade); });
    if (found == all.end()) {
      return absl::AbortedError(absl::StrCat(
          "the keeper of service \"", service, "\" knows nothing of upgrade ", upgrade.id(),
          " any more: it was started anew, and connections and workers with it"));
    }
    upgrade = *found;
    printer.Print(upgrade);
  }
  return upgrade;
}

void PrintUpgrade(std::ostream& out, const std::string& service, const v1::Upgrade& upgrade) {
  PrintFields(out, {{upgrade.rollback() ? "Rollback" : "Upgrade",
                     absl::StrCat(upgrade.id(), " of service ", service)},
                    {"Program", absl::StrCat(upgrade.exec(), upgrade.arguments().empty() ? "" : " ",
                                             absl::StrJoin(upgrade.arguments(), " "))},
                    {"Versions", FormatVersions(upgrade)},
                    {"Phase", FormatState(upgrade.phase())},
                    {"Detail", upgrade.detail()},
                    {"Old workers", absl::StrJoin(upgrade.old_worker_ids(), ", ")},
                    {"New workers", absl::StrJoin(upgrade.new_worker_ids(), ", ")},
                    {"Started", FormatTime(upgrade.started_unix_micros())},
                    {"Took", FormatElapsed(upgrade)},
                    {"Slowest blackout", FormatMove(upgrade.slowest_blackout_us())},
                    {"Slowest return", FormatMove(upgrade.slowest_return_us())}});
}

// One that gave up its return fails and goes on serving.
absl::StatusOr<bool> NewProgramServes(Session* session, const std::string& service,
                                      const v1::Upgrade& upgrade) {
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::GetServiceRequest request;
  request.set_service(service);
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse response, client->GetService(request));
  const auto& fresh = upgrade.new_worker_ids();
  return std::any_of(response.shards().begin(), response.shards().end(), [&](const auto& shard) {
    return std::find(fresh.begin(), fresh.end(), shard.owner_worker_id()) != fresh.end();
  });
}

// Whether one that is over ended as asked. `undo`: it was to be undone, and not to complete.
absl::Status Judge(Session* session, const std::string& service, const v1::Upgrade& upgrade,
                   bool undo) {
  const bool completed = upgrade.phase() == v1::UPGRADE_PHASE_COMPLETED;
  bool serves = completed;
  if (undo && !completed) {
    BATON_ASSIGN_OR_RETURN(serves, NewProgramServes(session, service, upgrade));
  }
  if (serves != undo) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("upgrade ", upgrade.id(), " of service \"", service,
                                         undo ? "\" was not undone" : "\" has not completed",
                                         upgrade.detail().empty() ? "" : ": ", upgrade.detail()));
}

// Prints what came of it.
template <typename Response>
absl::Status Follow(Session* session, const Options& options, Response response, bool undo) {
  v1::Upgrade* upgrade = response.mutable_upgrade();
  absl::Status status;
  if (!options.no_wait) {
    BATON_ASSIGN_OR_RETURN(*upgrade, WaitUntilOver(session, options.service, *upgrade));
    status = Judge(session, options.service, *upgrade, undo);
  }
  if (session->json) {
    session->PrintJson(response);
  } else {
    PrintUpgrade(session->out, options.service, *upgrade);
  }
  return status;
}

// After a request whose answer was lost with control: what the keeper did with it is in its list.
template <typename Response>
absl::StatusOr<Response> FindBegun(Session* session, const Options& options,
                                   const v1::ListUpgradesResponse& before,
                                   const absl::Status& lost) {
  BATON_RETURN_IF_ERROR(session->Reconnect().status());
  BATON_ASSIGN_OR_RETURN(v1::ListUpgradesResponse now, ListUpgrades(session, options.service));
  const uint64_t last = before.upgrades().empty() ? 0 : before.upgrades(0).id();
  if (now.upgrades().empty() || now.upgrades(0).id() <= last) return lost;
  Response response;
  *response.mutable_version() = now.version();
  response.mutable_upgrade()->Swap(now.mutable_upgrades(0));
  return response;
}

absl::Status Upgrade(Session* session, const Options& options) {
  v1::UpgradeRequest request;
  request.set_service(options.service);
  v1::UpgradePlan* plan = request.mutable_plan();
  BATON_ASSIGN_OR_RETURN(*plan->mutable_exec(), FindProgram(options.exec));
  if (session->program_arguments) {
    plan->set_replace_arguments(true);
    const std::vector<std::string>& arguments = *session->program_arguments;
    plan->mutable_arguments()->Add(arguments.begin(), arguments.end());
  }
  plan->set_workers(options.workers);
  plan->set_ready_timeout_ms(Milliseconds(options.ready_seconds));
  plan->set_watch_window_ms(Milliseconds(options.watch_seconds));
  plan->set_no_rollback(options.no_rollback);
  BATON_ASSIGN_OR_RETURN(const v1::ListUpgradesResponse before,
                         ListUpgrades(session, options.service));
  absl::StatusOr<v1::UpgradeResponse> response = session->connection->Upgrade(request);
  if (absl::IsUnavailable(response.status()) || absl::IsCancelled(response.status())) {
    response = FindBegun<v1::UpgradeResponse>(session, options, before, response.status());
  }
  BATON_RETURN_IF_ERROR(response.status());
  return Follow(session, options, *std::move(response), /*undo=*/false);
}

absl::Status Rollback(Session* session, const Options& options) {
  v1::RollbackRequest request;
  request.set_service(options.service);
  request.set_ready_timeout_ms(Milliseconds(options.ready_seconds));
  request.set_watch_window_ms(Milliseconds(options.watch_seconds));
  request.set_no_rollback(options.no_rollback);
  BATON_ASSIGN_OR_RETURN(const v1::ListUpgradesResponse before,
                         ListUpgrades(session, options.service));
  absl::StatusOr<v1::RollbackResponse> response = session->connection->Rollback(request);
  if (absl::IsUnavailable(response.status()) || absl::IsCancelled(response.status())) {
    return absl::UnavailableError(absl::StrCat(
        response.status().message(), "; whether it was begun is not known: see `baton upgrades ",
        options.service, "`"));
  }
  BATON_RETURN_IF_ERROR(response.status());
  const auto& known = before.upgrades();
  const bool undo = std::any_of(known.begin(), known.end(), [&](const v1::Upgrade& one) {
    return IsSame(one, response->upgrade());
  });
  return Follow(session, options, *std::move(response), undo);
}

absl::Status History(Session* session, const std::string& service) {
  BATON_ASSIGN_OR_RETURN(const v1::ListUpgradesResponse response, ListUpgrades(session, service));
  if (session->json) {
    session->PrintJson(response);
    return absl::OkStatus();
  }
  if (response.upgrades().empty()) {
    session->err << "service " << service << " was not upgraded since its keeper started\n";
    return absl::OkStatus();
  }
  Table table({">UPGRADE", "VERSIONS", "STARTED", ">TOOK", ">BLACKOUT", "PROGRAM", "PHASE"});
  for (const v1::Upgrade& upgrade : response.upgrades()) {
    table.Add({absl::StrCat(upgrade.id()), FormatVersions(upgrade),
               FormatTime(upgrade.started_unix_micros()), FormatElapsed(upgrade),
               FormatMove(upgrade.slowest_blackout_us()), upgrade.exec(), FormatProgress(upgrade)});
  }
  table.Print(session->out);
  return absl::OkStatus();
}

void AddLimits(CLI::App* command, Options* options) {
  command
      ->add_option("--ready-timeout", options->ready_seconds,
                   "seconds until the program has to be ready and healthy [as the service is "
                   "configured]")
      ->type_name("S")
      ->check(CLI::Range(0.001, 3600.0));
  command
      ->add_option("--watch-window", options->watch_seconds,
                   "seconds that it is watched, with the old one standing by [as the service is "
                   "configured]")
      ->type_name("S")
      ->check(CLI::Range(0.001, 86400.0));
  command->add_flag("--no-rollback", options->no_rollback,
                    "give up the return by itself: the old program ends at once");
  command->add_flag("--no-wait", options->no_wait, "do not wait for its end");
  command->footer(kWaitingFooter);
}

}  // namespace

void AddUpgradeCommands(CLI::App* app, Session* session) {
  auto options = std::make_shared<Options>();
  CLI::App* upgrade = app->add_subcommand(
      "upgrade", "Replace a service's program: baton upgrade SERVICE --exec PATH [-- ARGUMENTS]");
  upgrade->add_option("service", options->service, "the service")->required();
  upgrade
      ->add_option("--exec", options->exec,
                   "the new program; what follows \"--\" replaces the arguments of the old one")
      ->type_name("PATH")
      ->required();
  upgrade->add_option("--workers", options->workers, "how many to start [as many as are ready]")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  AddLimits(upgrade, options.get());
  upgrade->callback([session, options] {
    session->takes_program_arguments = true;
    session->action = [session, options] { return Upgrade(session, *options); };
  });

  CLI::App* rollback = app->add_subcommand(
      "rollback", "Undo the upgrade under way, or return to the program before the last one");
  rollback->add_option("service", options->service, "the service")->required();
  AddLimits(rollback, options.get());
  rollback->callback([session, options] {
    session->action = [session, options] { return Rollback(session, *options); };
  });

  CLI::App* upgrades = app->add_subcommand("upgrades", "Show a service's upgrades, newest first");
  upgrades->add_option("service", options->service, "the service")->required();
  upgrades->callback([session, options] {
    session->action = [session, options] { return History(session, options->service); };
  });
}

}  // namespace baton
