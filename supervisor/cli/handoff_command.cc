#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/plan.h"
#include "supervisor/cli/progress.h"
#include "supervisor/cli/session.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

// How long an answer may take when the keeper is left to choose its own time-out.
constexpr double kServiceTimeoutSeconds = 60;

struct Options {
  std::string service;
  std::vector<uint32_t> shards;
  uint64_t to_worker = 0;
  double wait_seconds = 0;  // 0: the service's
  Change change;
};

absl::Status Handoff(Session* session, Options options) {
  BATON_RETURN_IF_ERROR(ChooseService(session, Purpose::kChange, &options.service));
  auto request = About<v1::HandoffRequest>(options.service);
  for (const uint32_t shard : options.shards) request.add_shards(shard);
  request.set_to_worker_id(options.to_worker);
  request.set_timeout_ms(static_cast<uint32_t>(options.wait_seconds * 1000));
  if (options.change.dry_run) {
    BATON_ASSIGN_OR_RETURN(const std::string plan, PlanHandoff(session, &request));
    return PrintPlan(session, plan, request);
  }
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  const double wait = options.wait_seconds > 0 ? options.wait_seconds : kServiceTimeoutSeconds;
  absl::StatusOr<v1::HandoffResponse> response;
  {
    const Progress progress(session, absl::StrCat("handing over service ", options.service),
                            "the owners release their shards");
    response = client->Handoff(request, wait + session->timeout_seconds);
  }
  BATON_RETURN_IF_ERROR(response.status());
  if (session->json) return session->PrintJson(*response);
  PrintFields(session->out,
              {{"Shards moved", absl::StrCat(response->shards_size(), " (",
                                             absl::StrJoin(response->shards(), ", "), ")")},
               {"To worker", FormatWorkerId(response->to_worker_id())},
               {"Slowest blackout", FormatMicroseconds(response->slowest_blackout_us())}},
              session->style);
  session->PrintNext(
      absl::StrCat("`baton shard history ", options.service, "` shows what each move found"));
  return absl::OkStatus();
}

}  // namespace

void AddHandoffCommand(CLI::App* app, Session* session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app->add_subcommand("handoff", "Move shards to another worker, as planned");
  command->add_option("service", options->service, kTheirService);
  command->add_option("--shard", options->shards, "a shard to move; repeat for more [all]")
      ->type_name("SHARD")
      ->allow_extra_args(false);
  command->add_option("--to", options->to_worker, "the worker to move to [any that is ready]")
      ->type_name("WORKER")
      ->check(CLI::PositiveNumber);
  AddSeconds(command, "--wait-timeout", &options->wait_seconds, 3600,
             "seconds that owners have to release [as the service is configured]");
  AddChangeOptions(command, &options->change, /*asks=*/false, session);
  OnChosen(command, session, options, Handoff);
}

}  // namespace baton
