#include <algorithm>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "lib/base/status.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/description.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/plan.h"
#include "supervisor/cli/service_table.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

struct WorkerTarget {
  std::string service;
  std::optional<uint64_t> worker_id;  // nothing: the only one, for commands that look
  Change change;
  double wait_seconds = 10;
};

struct WorkerFilter {
  std::string service;  // empty: all
  std::optional<uint64_t> shard;
  std::string state;

  bool Passes(const v1::Worker& worker) const {
    const auto& shards = worker.shards();
    return (state.empty() || FormatState(worker.state()) == state) &&
           (!shard || std::find(shards.begin(), shards.end(), *shard) != shards.end());
  }
};

std::string FormatHealth(const v1::Worker& worker) {
  return absl::StrCat(worker.healthy() ? "ok" : "bad", worker.health_detail().empty() ? "" : ": ",
                      worker.health_detail());
}

absl::Status ListWorkers(Invocation* invocation, const WorkerFilter& filter) {
  BATON_ASSIGN_OR_RETURN(
      v1::ListWorkersResponse response,
      invocation->Ask(&Operator::ListWorkers, About<v1::ListWorkersRequest>(filter.service)));
  const bool none = response.workers().empty();
  KeepIf(response.mutable_workers(),
         [&](const v1::WorkerOfService& item) { return filter.Passes(item.worker()); });
  SortBy(response.mutable_workers(), [](const v1::WorkerOfService& item) {
    return std::pair(item.service(), item.worker().id());
  });
  if (invocation->json) return invocation->PrintJson(response);
  std::vector<std::pair<std::string, v1::Worker>> workers;
  for (const auto& item : response.workers()) workers.emplace_back(item.service(), item.worker());
  if (workers.empty()) {
    invocation->err << (none ? "no workers are attached\n" : "no such workers\n");
  } else {
    PrintWorkers(invocation->out, workers, invocation->style);
  }
  return absl::OkStatus();
}

absl::Status DescribeWorker(Invocation* invocation, WorkerTarget target) {
  BATON_RETURN_IF_ERROR(
      ChooseServiceOf(invocation, Purpose::kLook, &target.service, &target.worker_id));
  if (!target.worker_id) {
    BATON_ASSIGN_OR_RETURN(target.worker_id, OnlyWorker(invocation, target.service));
  }
  BATON_ASSIGN_OR_RETURN(const v1::GetWorkerResponse response,
                         AskWorker(invocation, target.service, *target.worker_id));
  if (invocation->json) return invocation->PrintJson(response);
  const v1::Worker& worker = response.worker();
  const bool owner = worker.shards_size() > 0;
  PrintFields(invocation->out,
              {{"Worker", absl::StrCat(worker.id(), " of service ", target.service)},
               {"Name", worker.name()},
               {"Version", worker.version()},
               {"Library", worker.library_release()},
               {"!State", FormatState(worker.state())},
               {"Process", absl::StrCat("pid ", worker.pid(), ", uid ", worker.uid())},
               {"Attached", FormatAgo(worker.attached_seconds())},
               {"Shards", absl::StrJoin(worker.shards(), ", ")},
               {"Heartbeats", absl::StrCat(worker.heartbeats())},
               {"Last heartbeat", owner ? FormatAgo(worker.seconds_since_heartbeat()) : ""},
               {"State versions", absl::StrCat("reads ", worker.reads_state_version_min(), " to ",
                                               worker.reads_state_version_max(), ", writes ",
                                               worker.writes_state_version())},
               {"Control stream", worker.control_stream() ? "open" : "none"},
               {"!Health", FormatHealth(worker)}},
              invocation->style);
  return absl::OkStatus();
}

// Returns the question before `verb` is done to a worker.
absl::StatusOr<std::string> Question(Invocation* invocation, const std::string& verb,
                                     const WorkerTarget& target) {
  BATON_ASSIGN_OR_RETURN(const v1::GetWorkerResponse response,
                         AskWorker(invocation, target.service, *target.worker_id));
  const v1::Worker& worker = response.worker();
  return Printable(absl::StrCat(verb, " worker ", worker.id(), " of service ", target.service, " (",
                                worker.name(), " ", worker.version(), ", pid ", worker.pid(), ")? ",
                                worker.shards().empty()
                                    ? "It owns no shard."
                                    : "Its shards go to another worker, if one is ready."));
}

// Asks a person. Without a terminal it needs --yes.
absl::Status ConfirmEnd(Invocation* invocation, const WorkerTarget& target, const std::string& verb,
                        const std::string& undone) {
  if (target.change.yes || !invocation->interactive) {
    return Confirm(invocation, target.change, "", undone);
  }
  BATON_ASSIGN_OR_RETURN(const std::string question, Question(invocation, verb, target));
  return Confirm(invocation, target.change, question, undone);
}

// A worker that is to end must be named, even if it is the only one.
absl::Status ChooseWorker(Invocation* invocation, WorkerTarget* target) {
  BATON_RETURN_IF_ERROR(
      ChooseServiceOf(invocation, Purpose::kChange, &target->service, &target->worker_id));
  if (target->worker_id) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("name a worker of service ", target->service,
                                                 ", as `baton worker list` shows them"));
}

absl::Status TellOutcome(Invocation* invocation, const WorkerTarget& target,
                         const google::protobuf::Message& response, const char* outcome) {
  if (invocation->json) return invocation->PrintJson(response);
  invocation->err << "worker " << *target.worker_id << " of service " << target.service << outcome;
  invocation->PrintNext(absl::StrCat("`baton shard list ", target.service,
                                     "` shows which worker has its shards now"));
  return absl::OkStatus();
}

absl::Status Stop(Invocation* invocation, WorkerTarget target) {
  BATON_RETURN_IF_ERROR(ChooseWorker(invocation, &target));
  auto request = About<v1::StopWorkerRequest>(target.service);
  request.set_worker_id(*target.worker_id);
  request.set_timeout_ms(static_cast<uint32_t>(target.wait_seconds * 1000));
  if (target.change.dry_run) return PrintPlan(invocation, PlanStop(invocation, request), request);
  BATON_RETURN_IF_ERROR(ConfirmEnd(invocation, target, "Stop", "nothing was stopped"));
  BATON_RETURN_IF_ERROR(invocation->Connect().status());
  absl::StatusOr<v1::StopWorkerResponse> response;
  {
    const Progress progress(
        invocation,
        absl::StrCat("stopping worker ", *target.worker_id, " of service ", target.service),
        absl::StrCat("it has ", FormatDuration(target.wait_seconds), " to end"));
    response = invocation->Ask(&Operator::StopWorker, request, target.wait_seconds);
  }
  if (absl::IsDeadlineExceeded(response.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat(absl::StripSuffix(response.status().message(), kTimeoutCure),
                     "; --wait-timeout gives it longer"));
  }
  BATON_RETURN_IF_ERROR(response.status());
  return TellOutcome(invocation, target, *response, " has ended\n");
}

absl::Status Kill(Invocation* invocation, WorkerTarget target) {
  BATON_RETURN_IF_ERROR(ChooseWorker(invocation, &target));
  auto request = About<v1::KillWorkerRequest>(target.service);
  request.set_worker_id(*target.worker_id);
  if (target.change.dry_run) return PrintPlan(invocation, PlanKill(invocation, request), request);
  BATON_RETURN_IF_ERROR(ConfirmEnd(invocation, target, "Kill", "nothing was killed"));
  BATON_ASSIGN_OR_RETURN(const v1::KillWorkerResponse response,
                         invocation->Ask(&Operator::KillWorker, request));
  return TellOutcome(invocation, target, response, " was sent SIGKILL\n");
}

void AddOne(CLI::App* command, WorkerTarget* target, bool needs_number) {
  command->add_option("service", target->service, kItsService);
  CLI::Option* number = command->add_option(
      "worker", target->worker_id,
      needs_number ? "its number, as listed" : "its number, as listed [the only one]");
  if (needs_number) number->group(kNeeded);
}

}  // namespace

void AddWorkerCommands(CLI::App* app, Invocation* invocation) {
  CLI::App* noun = AddNoun(app, "worker", "Workers: processes attached to a service");
  auto filter = std::make_shared<WorkerFilter>();
  CLI::App* list = noun->add_subcommand("list", "List the workers of one service or of all");
  list->add_option("service", filter->service, "only those of this service");
  AddNumber(list, "--shard", &filter->shard, "SHARD", "only owners of a shard with this number");
  AddChoice(list, "--state", &filter->state, {"attached", "ready", "dying"},
            "only those in this state");
  AddListingOptions(list, invocation);
  OnChosen(list, invocation, filter, ListWorkers);

  auto target = std::make_shared<WorkerTarget>();
  const auto add = [&](const char* verb, const char* text, auto run) {
    CLI::App* command = noun->add_subcommand(verb, text);
    AddOne(command, target.get(), /*needs_number=*/std::string(verb) != "describe");
    OnChosen(command, invocation, target, run);
    return command;
  };
  AddWatchOption(add("describe", "Show a worker", DescribeWorker), invocation);
  CLI::App* stop =
      add("stop", "Ask a worker to release its shards and end, and wait until it has", Stop);
  AddSeconds(stop, "--wait-timeout", &target->wait_seconds, 600, "seconds that it has to end")
      ->capture_default_str();
  AddChangeOptions(stop, &target->change, /*asks=*/true, invocation);
  CLI::App* kill = add("kill", "Kill a worker's process with SIGKILL", Kill);
  AddChangeOptions(kill, &target->change, /*asks=*/true, invocation);
}

}  // namespace baton
