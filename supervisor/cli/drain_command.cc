#include <chrono>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

// Connections that were disconnected at the deadline are usually gone after this time.
constexpr std::chrono::seconds kDisconnecting(10);

struct DrainOptions {
  std::string service;
  bool all = false;
  double deadline_seconds = 0;  // 0: none
  bool disconnect = false;
  bool no_wait = false;
  bool end = false;
  Change change;
};

// Requires the service's name even if it is the only one, because its clients cannot connect during
// a drain.
absl::Status CheckServiceIsNamed(Invocation* invocation, const DrainOptions& options) {
  const bool named = !options.service.empty();
  if (options.all && named) {
    return absl::InvalidArgumentError("name one SERVICE, or give --all: not both");
  }
  if (options.all || named) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const v1::ListServicesResponse known, invocation->AskServices());
  return absl::InvalidArgumentError(absl::StrCat("name one SERVICE, or give --all; there are: ",
                                                 absl::StrJoin(NamesOf(known), ", ")));
}

absl::Status CheckOptions(const DrainOptions& options) {
  if (options.disconnect && options.deadline_seconds == 0) {
    return absl::InvalidArgumentError(
        "--disconnect: without --deadline there is no time at which to disconnect");
  }
  if (options.end && (options.deadline_seconds != 0 || options.no_wait)) {
    return absl::InvalidArgumentError("--end goes without --deadline, --disconnect and --no-wait");
  }
  return absl::OkStatus();
}

// Returns the services that the options name, as they are now.
absl::StatusOr<v1::ListServicesResponse> ChosenServices(Invocation* invocation,
                                                        const DrainOptions& options) {
  BATON_ASSIGN_OR_RETURN(const v1::ListServicesResponse all, invocation->AskServices());
  if (options.all) return all;
  v1::ListServicesResponse chosen = all;
  KeepIf(chosen.mutable_services(),
         [&](const v1::Service& one) { return one.name() == options.service; });
  if (chosen.services().empty()) return NoService(options.service, all);
  return chosen;
}

absl::Status DrainOrEnd(Invocation* invocation, const DrainOptions& options,
                        const v1::Service& service) {
  if (options.end) {
    // With --all, services that are not drained are as they should be.
    if (options.all && service.reachable() && !service.has_drain()) return absl::OkStatus();
    return invocation->Ask(&Operator::EndDrain, About<v1::EndDrainRequest>(service.name()))
        .status();
  }
  auto request = About<v1::DrainServiceRequest>(service.name());
  request.set_deadline_ms(static_cast<uint32_t>(options.deadline_seconds * 1000));
  request.set_disconnect(options.disconnect);
  return invocation->Ask(&Operator::DrainService, request).status();
}

uint64_t ConnectionsLeft(const v1::ListServicesResponse& services) {
  uint64_t left = 0;
  for (const v1::Service& service : services.services()) {
    left += service.drain().connections_left();
  }
  return left;
}

// Checks that the counts are meaningful: a service that cannot be asked, or that takes connections
// again, does not count as drained.
absl::Status CheckDrained(const v1::ListServicesResponse& services) {
  for (const v1::Service& service : services.services()) {
    if (!service.reachable()) {
      return absl::UnavailableError(
          absl::StrCat("how many connections are left is not known: ", service.problem()));
    }
    if (!service.has_drain()) {
      return absl::AbortedError(absl::StrCat("service \"", service.name(),
                                             "\" takes connections again: somebody has ended its "
                                             "drain (`baton audit ",
                                             service.name(), "`)"));
    }
  }
  return absl::OkStatus();
}

// ", 25s until the deadline"
std::string Deadline(const DrainOptions& options, Clock::duration elapsed) {
  if (options.deadline_seconds == 0) return "";
  const double left = options.deadline_seconds - std::chrono::duration<double>(elapsed).count();
  return left <= 0 ? ", the deadline has passed"
                   : absl::StrCat(", ", FormatDuration(left), " until the deadline");
}

// Returns when no connection is left or the deadline has passed. `services` becomes what was seen
// last.
absl::Status Await(Invocation* invocation, const DrainOptions& options,
                   v1::ListServicesResponse* services) {
  const auto begun = Clock::now();
  auto patience = std::chrono::duration<double>(options.deadline_seconds);
  if (options.disconnect) patience += kDisconnecting;
  Progress progress(invocation, "draining", "connections end");
  for (;;) {
    BATON_ASSIGN_OR_RETURN(*services, ChosenServices(invocation, options));
    BATON_RETURN_IF_ERROR(CheckDrained(*services));
    const uint64_t left = ConnectionsLeft(*services);
    if (left == 0) return absl::OkStatus();
    const std::string line = absl::StrCat(FormatCount(left, "connection"), " left");
    progress.Tell(absl::StrCat(line, Deadline(options, Clock::now() - begun)), line);
    if (options.deadline_seconds != 0 && Clock::now() - begun > patience) {
      return absl::DeadlineExceededError(
          absl::StrCat(FormatCount(left, "connection"), left == 1 ? " is" : " are",
                       " left at the deadline and go on (`baton connection list",
                       options.all ? "" : absl::StrCat(" ", options.service),
                       "` shows their peers); new ones are refused until `baton drain ",
                       options.all ? "--all" : options.service, " --end`"));
    }
    std::this_thread::sleep_for(kLookInterval);
  }
}

void Print(Invocation* invocation, const v1::ListServicesResponse& services) {
  if (invocation->json) return invocation->PrintJson(services).IgnoreError();
  Table table({"SERVICE", "!NEW CONNECTIONS", ">LEFT", ">REFUSED", ">DISCONNECTED", "DEADLINE"},
              invocation->style);
  for (const v1::Service& service : services.services()) {
    const v1::Drain& drain = service.drain();
    const bool drained = service.has_drain();
    const std::string taken = !service.reachable() ? "unreachable" : drained ? "refused" : "taken";
    table.Add(
        {service.name(), taken,
         absl::StrCat(drained ? drain.connections_left() : service.connection_count()),
         drained ? absl::StrCat(drain.refused()) : "-",
         drained ? absl::StrCat(drain.disconnected()) : "-",
         drain.deadline_unix_micros() == 0 ? "-" : FormatSeconds(drain.deadline_unix_micros())});
  }
  table.Print(invocation->out);
}

absl::Status Plan(Invocation* invocation, const DrainOptions& options,
                  const v1::ListServicesResponse& services) {
  std::vector<std::string> parts;
  for (const v1::Service& service : services.services()) {
    parts.push_back(absl::StrCat(service.name(), " (", service.connection_count(),
                                 " connections, new ones are ",
                                 service.has_drain() ? "refused" : "taken", ")"));
  }
  const std::string what =
      options.end ? "take new connections again"
      : options.disconnect
          ? absl::StrCat("refuse new connections, and disconnect what is left after ",
                         FormatDuration(options.deadline_seconds))
          : "refuse new connections, and let those there are go on";
  return PrintPlan(invocation, absl::StrCat("would ", what, ": ", absl::StrJoin(parts, ", ")),
                   services);
}

absl::Status Drain(Invocation* invocation, const DrainOptions& options) {
  BATON_RETURN_IF_ERROR(CheckServiceIsNamed(invocation, options));
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  BATON_ASSIGN_OR_RETURN(v1::ListServicesResponse services, ChosenServices(invocation, options));
  if (options.change.dry_run) return Plan(invocation, options, services);
  // All services are asked, also after one has refused.
  absl::Status status;
  for (const v1::Service& service : services.services()) {
    const absl::Status asked = DrainOrEnd(invocation, options, service);
    if (!asked.ok()) invocation->err << service.name() << ": " << asked.message() << std::endl;
    status.Update(asked);
  }
  if (status.ok() && !options.end && !options.no_wait) {
    status = Await(invocation, options, &services);
  } else {
    BATON_ASSIGN_OR_RETURN(services, ChosenServices(invocation, options));
  }
  Print(invocation, services);
  if (status.ok() && !options.end) {
    invocation->PrintNext(absl::StrCat("`baton drain ", options.all ? "--all" : options.service,
                                       " --end` takes new connections again"));
  }
  return status;
}

}  // namespace

void AddDrainCommand(CLI::App* app, Invocation* invocation) {
  auto options = std::make_shared<DrainOptions>();
  CLI::App* command = app->add_subcommand(
      "drain", "Refuse new connections, and wait until those there are have ended");
  command->add_option("service", options->service, "the service");
  command->add_flag("--all", options->all, "all services: the machine's maintenance");
  AddSeconds(command, "--deadline", &options->deadline_seconds, 4'000'000,
             "seconds to wait for that [for ever]");
  command->add_flag("--disconnect", options->disconnect,
                    "at the deadline, disconnect those that are left");
  command->add_flag("--no-wait", options->no_wait, "do not wait for their end");
  command->add_flag("--end", options->end, "take new connections again");
  AddChangeOptions(command, &options->change, /*asks=*/false, invocation);
  command->footer(
      "New connections are refused until --end, whoever is started anew meanwhile. Exit code 6: "
      "some were left at the deadline.");
  OnChosen(command, invocation, options, Drain);
}

}  // namespace baton
