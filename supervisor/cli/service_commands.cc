#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/listing.h"
#include "supervisor/cli/service_table.h"
#include "supervisor/cli/session.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

struct Filter {
  std::vector<std::string> services;  // empty: all
  std::string state;
};

// Each service that was named has to be there.
absl::Status CheckNames(const Filter& filter, const v1::ListServicesResponse& all) {
  std::vector<std::string> names;
  for (const v1::Service& service : all.services()) names.push_back(service.name());
  for (const std::string& name : filter.services) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    return absl::NotFoundError(absl::StrCat("there is no service \"", name,
                                            "\"; there are: ", absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

absl::Status List(Session* session, const Filter& filter) {
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  BATON_ASSIGN_OR_RETURN(v1::ListServicesResponse response, client->ListServices({}));
  BATON_RETURN_IF_ERROR(CheckNames(filter, response));
  const bool none = response.services().empty();
  KeepIf(response.mutable_services(), [&](const v1::Service& service) {
    const auto& names = filter.services;
    return (filter.state.empty() || StateOf(service) == filter.state) &&
           (names.empty() || std::find(names.begin(), names.end(), service.name()) != names.end());
  });
  SortBy(response.mutable_services(), [](const v1::Service& service) { return service.name(); });
  if (session->json) {
    session->PrintJson(response);
  } else {
    PrintServices(session->out, response.services(), session->style);
    session->PrintNext(NextForServices(response.services()));
    if (none) session->err << "no services are configured\n";
  }
  return absl::OkStatus();
}

// Describes the upgrade under way, if any.
std::string FormatUpgrade(const v1::Service& service) {
  if (!service.has_upgrade()) return "none under way";
  const v1::Upgrade& upgrade = service.upgrade();
  return absl::StrCat(upgrade.id(), upgrade.rollback() ? ", back, " : ", ", FormatVersions(upgrade),
                      ", ", FormatProgress(upgrade));
}

std::string FormatDrain(const v1::Service& service) {
  if (!service.has_drain()) return "taken";
  const v1::Drain& drain = service.drain();
  return absl::StrCat("refused (", drain.refused(), " since ",
                      FormatTime(drain.started_unix_micros()), ")",
                      drain.deadline_unix_micros() == 0
                          ? ""
                          : absl::StrCat("; deadline ", FormatTime(drain.deadline_unix_micros())));
}

std::string FormatListeners(const v1::Service& service) {
  std::string listeners =
      absl::StrJoin(service.listeners(), ", ", [](std::string* text, const v1::Listener& listener) {
        absl::StrAppend(text, listener.host(), ":", listener.port());
      });
  if (service.network_namespace().empty()) return listeners;
  return absl::StrCat(listeners.empty() ? "none" : listeners, " in network namespace ",
                      service.network_namespace());
}

// The objects of the device, by the keeper's count.
std::string FormatObjects(const v1::Accounts& accounts) {
  return absl::StrCat(accounts.queue_pairs(), " QPs, ", accounts.completion_queues(), " CQs, ",
                      accounts.shared_receive_queues(), " SRQs, ", accounts.memory_regions(),
                      " MRs of ", FormatBytes(accounts.registered_bytes()));
}

std::string FormatGrants(const v1::Accounts& accounts) {
  return absl::StrCat(accounts.grants(), " of ", FormatBytes(accounts.granted_bytes()));
}

std::string FormatProcess(int32_t pid, double uptime_seconds, const std::string& release) {
  return absl::StrCat("pid ", pid, ", up ", FormatDuration(uptime_seconds),
                      release.empty() ? "" : ", release ", release);
}

std::string FormatKeeper(const v1::Service& service) {
  const std::string& given_up = service.keeper_program_given_up();
  return absl::StrCat(
      FormatProcess(service.keeper_pid(), service.uptime_seconds(), service.keeper_release()),
      given_up.empty() ? "" : "; ", given_up);
}

// Connections end with this process.
std::string FormatDriver(const v1::Service& service) {
  // A keeper of the release before this one does not say it.
  if (service.driver_pid() == 0) return "";
  if (service.driver_pid() == service.keeper_pid()) return "its keeper";
  return FormatProcess(service.driver_pid(), service.driver_uptime_seconds(),
                       service.driver_release());
}

void PrintService(std::ostream& out, const v1::Service& service, const TableStyle& style) {
  PrintFields(
      out,
      {{"Service", service.name()},
       {"Device", FormatDevice(service)},
       {"Keeper", FormatKeeper(service)},
       {"Driver", FormatDriver(service)},
       {"Version", FormatVersion(service.version())},
       {"Worker socket", service.worker_socket()},
       {"Listeners", FormatListeners(service)},
       {"Shards owned", absl::StrCat(service.shards_owned(), " of ", service.shard_count())},
       {"Workers ready", absl::StrCat(service.ready_workers(), " of ", service.worker_count())},
       {"Upgrade", FormatUpgrade(service)},
       {"New connections", FormatDrain(service)},
       {"Connections", absl::StrCat(service.connection_count(), " of ", service.max_connections())},
       {"Buffers", FormatBytes(service.buffer_bytes())},
       {"Device objects", service.has_accounts() ? FormatObjects(service.accounts()) : ""},
       {"Grants", service.has_accounts() ? FormatGrants(service.accounts()) : ""},
       {"Handoff blackout", FormatBlackout(service.handoff_blackout())},
       {"Failover blackout", FormatBlackout(service.failover_blackout())}},
      style);
  if (service.accounts().warnings().empty()) return;
  out << "\nWarnings:\n";
  for (const std::string& warning : service.accounts().warnings()) {
    out << "  " << Printable(warning) << '\n';
  }
}

absl::Status Describe(Session* session, std::string name) {
  BATON_RETURN_IF_ERROR(ChooseService(session, Purpose::kLook, &name));
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::GetServiceRequest request;
  request.set_service(name);
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse response, client->GetService(request));
  if (session->json) {
    session->PrintJson(response);
    return absl::OkStatus();
  }
  PrintService(session->out, response.service(), session->style);
  session->out << "\nShards:\n";
  PrintShards(session->out, {response.shards().begin(), response.shards().end()}, session->style);
  session->out << "\nWorkers:\n";
  std::vector<std::pair<std::string, v1::Worker>> workers;
  for (const v1::Worker& worker : response.workers()) workers.emplace_back(name, worker);
  PrintWorkers(session->out, workers, session->style);
  return absl::OkStatus();
}

}  // namespace

void AddServiceCommands(CLI::App* app, Session* session) {
  CLI::App* noun = app->add_subcommand("service", "Services: what is upgraded as one");
  noun->require_subcommand(1);
  noun->fallthrough();
  CLI::App* list = noun->add_subcommand("list", "List the services");
  auto filter = std::make_shared<Filter>();
  list->add_option("--service", filter->services, "only this one; repeat for more")
      ->type_name("SERVICE")
      ->allow_extra_args(false);
  AddChoice(list, "--state", &filter->state, {"ok", "drained", "waiting", "unreachable"},
            "only those in this state");
  AddListingOptions(list, session);
  list->callback([session, filter] {
    session->action = [session, filter] { return List(session, *filter); };
  });
  CLI::App* describe = noun->add_subcommand("describe", "Show a service, its shards and workers");
  auto name = std::make_shared<std::string>();
  describe->add_option("service", *name, kItsService);
  AddWatchOption(describe, session);
  describe->callback(
      [session, name] { session->action = [session, name] { return Describe(session, *name); }; });
  AddPolicyCommand(noun, session);
}

}  // namespace baton
