#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/service_table.h"
#include "supervisor/cli/session.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

absl::Status List(Session* session) {
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  BATON_ASSIGN_OR_RETURN(const v1::ListServicesResponse response, client->ListServices({}));
  if (session->json) {
    session->PrintJson(response);
  } else {
    PrintServices(session->out, response.services());
    if (response.services().empty()) session->err << "no services are configured\n";
  }
  return absl::OkStatus();
}

// Of the one under way, if any.
std::string FormatUpgrade(const v1::Service& service) {
  if (!service.has_upgrade()) return "none under way";
  const v1::Upgrade& upgrade = service.upgrade();
  return absl::StrCat(upgrade.id(), upgrade.rollback() ? ", back, " : ", ", FormatVersions(upgrade),
                      ", ", FormatProgress(upgrade));
}

std::string FormatListeners(const v1::Service& service) {
  const std::string listeners =
      absl::StrJoin(service.listeners(), ", ", [](std::string* text, const v1::Listener& listener) {
        absl::StrAppend(text, listener.host(), ":", listener.port());
      });
  if (service.network_namespace().empty()) return listeners;
  return absl::StrCat(listeners.empty() ? "none" : listeners, " in network namespace ",
                      service.network_namespace());
}

void PrintService(std::ostream& out, const v1::Service& service) {
  PrintFields(
      out,
      {{"Service", service.name()},
       {"Device", FormatDevice(service)},
       {"Keeper", absl::StrCat("pid ", service.keeper_pid(), ", up ",
                               FormatDuration(service.uptime_seconds()))},
       {"Version", FormatVersion(service.version())},
       {"Worker socket", service.worker_socket()},
       {"Listeners", FormatListeners(service)},
       {"Shards owned", absl::StrCat(service.shards_owned(), " of ", service.shard_count())},
       {"Workers ready", absl::StrCat(service.ready_workers(), " of ", service.worker_count())},
       {"Upgrade", FormatUpgrade(service)},
       {"Connections", absl::StrCat(service.connection_count(), " of ", service.max_connections())},
       {"Buffers", FormatBytes(service.buffer_bytes())},
       {"Handoff blackout", FormatBlackout(service.handoff_blackout())},
       {"Failover blackout", FormatBlackout(service.failover_blackout())}});
}

absl::Status Describe(Session* session, const std::string& name) {
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::GetServiceRequest request;
  request.set_service(name);
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse response, client->GetService(request));
  if (session->json) {
    session->PrintJson(response);
    return absl::OkStatus();
  }
  PrintService(session->out, response.service());
  session->out << "\nShards:\n";
  PrintShards(session->out, {response.shards().begin(), response.shards().end()});
  session->out << "\nWorkers:\n";
  std::vector<std::pair<std::string, v1::Worker>> workers;
  for (const v1::Worker& worker : response.workers()) workers.emplace_back(name, worker);
  PrintWorkers(session->out, workers);
  return absl::OkStatus();
}

}  // namespace

void AddServiceCommands(CLI::App* app, Session* session) {
  CLI::App* noun = app->add_subcommand("service", "Services: what is upgraded as one");
  noun->require_subcommand(1);
  noun->fallthrough();
  noun->add_subcommand("list", "List the services")->callback([session] {
    session->action = [session] { return List(session); };
  });
  CLI::App* describe = noun->add_subcommand("describe", "Show a service, its shards and workers");
  auto name = std::make_shared<std::string>();
  describe->add_option("service", *name, "its name")->required();
  describe->callback(
      [session, name] { session->action = [session, name] { return Describe(session, *name); }; });
}

}  // namespace baton
