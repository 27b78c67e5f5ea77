#include <nlohmann/json.hpp>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/base/version.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/service_table.h"
#include "supervisor/cli/session.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

using nlohmann::ordered_json;

absl::Status Status(Session* session) {
  BATON_ASSIGN_OR_RETURN(v1::GetStatusResponse status,
                         session->Ask(&OperatorClient::GetStatus, v1::GetStatusRequest()));
  SortBy(status.mutable_services(), [](const v1::Service& service) { return service.name(); });
  if (session->json) return session->PrintJson(status);
  PrintFields(session->out,
              {{"Release", FormatVersion(status.version())},
               {"Control", absl::StrCat("pid ", status.control_pid(), ", up ",
                                        FormatDuration(status.control_uptime_seconds()))},
               {"Services", absl::StrCat(status.services_size())}},
              session->style);
  if (status.services_size() > 0) session->out << '\n';
  PrintServices(session->out, status.services(), session->style);
  session->PrintNext(NextForServices(status.services()));
  return absl::OkStatus();
}

// The client's own version is told even when there is nobody to compare it with.
absl::Status Version(Session* session) {
  const absl::StatusOr<v1::GetStatusResponse> answer =
      session->Ask(&OperatorClient::GetStatus, v1::GetStatusRequest());
  const absl::Status& problem = answer.status();
  if (session->json) {
    ordered_json json = {{"client_release", kRelease}, {"server", nullptr}};
    if (problem.ok()) json["server"] = ordered_json::parse(ToJson(answer->version()));
    session->out << json.dump() << '\n';
    return problem;
  }
  PrintFields(session->out,
              {{"Client", kRelease},
               {"!Server", problem.ok() ? FormatVersion(answer->version()) : "unreachable"}},
              session->style);
  return problem;
}

}  // namespace

void AddStatusCommands(CLI::App* app, Session* session) {
  CLI::App* status = app->add_subcommand("status", "Show Baton and its services");
  AddListingOptions(status, session);
  status->callback([session] { session->action = [session] { return Status(session); }; });
  app->add_subcommand("version", "Show the release of this program and of batond")
      ->callback([session] { session->action = [session] { return Version(session); }; });
}

}  // namespace baton
