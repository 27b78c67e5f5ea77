#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/progress.h"
#include "supervisor/cli/session.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

constexpr char kFooter[] =
    "Takes who may do what (operator_uids, operator_gids, viewer_uids, viewer_gids), all of "
    "operator_endpoint, metrics_address, and services that are new. No connection notices. Whoever "
    "may no longer do what he could is cut off, calls and streams included. A service that has "
    "changed or is no longer there is listed with the reason and goes on as it is; with "
    "--disconnect it is taken, too, which ends that service's connections. Nothing is taken of a "
    "configuration with an error in it. SIGHUP to batond does the same without --disconnect, and "
    "the log tells.";

absl::Status Reload(Session* session, const Change& change, bool disconnect) {
  v1::ReloadRequest request;
  request.set_disconnect(disconnect);
  if (change.dry_run) {
    return PrintPlan(session, "would have batond read its configuration again", request);
  }
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  absl::StatusOr<v1::ReloadResponse> reloaded;
  {
    const Progress progress(session, "reloading", "batond reads its configuration");
    reloaded = client->Reload(request);
  }
  BATON_ASSIGN_OR_RETURN(const v1::ReloadResponse response, std::move(reloaded));
  if (session->json) {
    session->PrintJson(response);
    return absl::OkStatus();
  }
  PrintFields(session->out,
              {{"Taken", response.taken().empty() ? "nothing has changed that is taken"
                                                  : absl::StrJoin(response.taken(), ", ")}},
              session->style);
  if (response.not_taken().empty()) return absl::OkStatus();
  session->out << '\n';
  Table table({"NOT TAKEN", "WHY"}, session->style);
  for (const v1::NotTaken& one : response.not_taken()) table.Add({one.field(), one.why()});
  table.Print(session->out);
  return absl::OkStatus();
}

}  // namespace

void AddReloadCommand(CLI::App* app, Session* session) {
  CLI::App* command = app->add_subcommand("reload", "Have batond read its configuration again");
  auto change = std::make_shared<Change>();
  AddChangeOptions(command, change.get(), /*asks=*/false, session);
  auto disconnect = std::make_shared<bool>(false);
  command->add_flag("--disconnect", *disconnect,
                    "Take also services that have changed or are no longer there, which ends their "
                    "connections");
  command->footer(kFooter);
  command->callback([session, change, disconnect] {
    session->action = [=] { return Reload(session, *change, *disconnect); };
  });
}

}  // namespace baton
