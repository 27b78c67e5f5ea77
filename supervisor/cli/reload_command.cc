#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

constexpr char kFooter[] =
    "batond puts in force what ends no connection: who may do what, all of "
    "operator_endpoint, metrics_address, log_level, new services, and of each service its "
    "listeners, worker_uids, max_listeners, timeouts, policy, poison_deaths (brokered) and "
    "state_decoder. A listener that is gone takes no more peers; those it took stay "
    "connected. Whoever may no longer do what he could is cut off, calls and streams "
    "included. What would end connections is listed first, with its services, and goes on as "
    "it is. With --disconnect it is taken, too, and ends the connections of those services "
    "alone. With --dry-run nothing changes. Nothing is taken of a configuration with an "
    "error in it. SIGHUP to batond does the same without --disconnect, and the log tells.";

absl::StatusOr<v1::ReloadResponse> AskToReload(Invocation* invocation,
                                               const v1::ReloadRequest& request) {
  BATON_RETURN_IF_ERROR(invocation->Connect().status());
  const Progress progress(invocation, "reloading", "batond reads its configuration");
  return invocation->Ask(&Operator::Reload, request);
}

// Returns the services that --disconnect would disconnect, each once.
std::set<std::string> WouldDisconnect(const v1::ReloadResponse& response) {
  std::set<std::string> services;
  for (const v1::NotTaken& one : response.not_taken()) {
    if (!one.ends_connections_of().empty()) services.insert(one.ends_connections_of());
  }
  return services;
}

void PrintSummary(Invocation* invocation, const v1::ReloadResponse& response, bool dry_run) {
  std::vector<std::pair<std::string, std::string>> fields;
  const std::set<std::string> spared = WouldDisconnect(response);
  if (!spared.empty()) {
    fields.emplace_back(
        "Would end connections of",
        absl::StrCat(absl::StrJoin(spared, ", "), "; `baton reload --disconnect` takes that, too"));
  }
  if (!response.disconnected().empty()) {
    fields.emplace_back(dry_run ? "Would end connections of" : "Ends connections of",
                        absl::StrJoin(response.disconnected(), ", "));
  }
  fields.emplace_back(dry_run ? "Would take" : "Taken",
                      response.taken().empty() ? "nothing has changed that is taken"
                                               : absl::StrJoin(response.taken(), ", "));
  PrintFields(invocation->out, fields, invocation->style);
}

void PrintNotTaken(Invocation* invocation, const v1::ReloadResponse& response) {
  if (response.not_taken().empty()) return;
  invocation->out << '\n';
  Table table({"NOT TAKEN", "WHY"}, invocation->style);
  for (const bool ends_connections : {true, false}) {
    for (const v1::NotTaken& one : response.not_taken()) {
      if (one.ends_connections_of().empty() == ends_connections) continue;
      table.Add({one.field(), one.why()});
    }
  }
  table.Print(invocation->out);
}

absl::Status Reload(Invocation* invocation, const Change& change, bool disconnect) {
  v1::ReloadRequest request;
  request.set_disconnect(disconnect);
  request.set_validate_only(change.dry_run);
  BATON_ASSIGN_OR_RETURN(const v1::ReloadResponse response, AskToReload(invocation, request));
  if (invocation->json) return invocation->PrintJson(response);
  if (change.dry_run) invocation->out << "dry run: nothing was changed\n";
  PrintSummary(invocation, response, change.dry_run);
  PrintNotTaken(invocation, response);
  return absl::OkStatus();
}

}  // namespace

void AddReloadCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* command = app->add_subcommand("reload", "Have batond read its configuration again");
  auto change = std::make_shared<Change>();
  AddChangeOptions(command, change.get(), /*asks=*/false, invocation);
  auto disconnect = std::make_shared<bool>(false);
  command->add_flag("--disconnect", *disconnect,
                    "Take also services that have changed or are no longer there, which ends their "
                    "connections");
  command->footer(kFooter);
  command->callback([invocation, change, disconnect] {
    invocation->action = [=] { return Reload(invocation, *change, *disconnect); };
  });
}

}  // namespace baton
