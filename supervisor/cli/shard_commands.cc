#include <algorithm>
#include <cstdint>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/plan.h"
#include "supervisor/cli/service_table.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

// Work requests of a report that are shown where there is no terminal; -o wide shows all of them.
constexpr int kFirstWorkRequests = 20;
// Lines of a terminal that the rest of the report and the prompt take.
constexpr int kOtherLines = 28;

struct ShardTarget {
  std::string service;
  std::optional<uint64_t> shard;  // nothing: the only one; of a history, all
};

struct ShardFilter {
  std::string service;
  std::optional<uint64_t> owner;
  std::string state;

  bool Passes(const v1::Shard& shard) const {
    const bool owned = shard.owner_worker_id() != 0;
    return (!owner || shard.owner_worker_id() == *owner) &&
           (state.empty() || owned == (state == "owned"));
  }
};

absl::Status ListShards(Invocation* invocation, ShardFilter filter) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kLook, &filter.service));
  BATON_ASSIGN_OR_RETURN(
      v1::ListShardsResponse response,
      invocation->Ask(&Operator::ListShards, About<v1::ListShardsRequest>(filter.service)));
  KeepIf(response.mutable_shards(),
         [&](const v1::ShardOfService& item) { return filter.Passes(item.shard()); });
  SortBy(response.mutable_shards(),
         [](const v1::ShardOfService& item) { return item.shard().index(); });
  if (invocation->json) return invocation->PrintJson(response);
  std::vector<v1::Shard> shards;
  for (const auto& item : response.shards()) shards.push_back(item.shard());
  if (shards.empty()) {
    invocation->err << "no such shards\n";
  } else {
    PrintShards(invocation->out, shards, invocation->style);
  }
  return absl::OkStatus();
}

void PrintShard(std::ostream& out, const std::string& service, const v1::Shard& shard,
                const TableStyle& style) {
  PrintFields(
      out,
      {{"Shard", absl::StrCat(shard.index(), " of service ", service)},
       {"!Owner", shard.owner_worker_id() == 0 ? absl::StrCat("nobody: ", shard.waiting_reason())
                                               : absl::StrCat("worker ", shard.owner_worker_id())},
       {"Heir", shard.heir_worker_id() == 0 ? "" : absl::StrCat("worker ", shard.heir_worker_id())},
       {"Epoch", absl::StrCat(shard.epoch())},
       {"Connections", absl::StrCat(shard.connections())},
       {"Commits", absl::StrCat(shard.commits())},
       {"Sends", absl::StrCat(shard.sends_posted(), " posted, ", shard.send_requests_in_flight(),
                              " in flight")},
       {"Receives", absl::StrCat(shard.receives_posted(), " posted")},
       {"Completions", absl::StrCat(shard.completions(), ", ", shard.completions_unacknowledged(),
                                    " not acknowledged")},
       {"Handoff blackout", FormatBlackout(shard.handoff_blackout())},
       {"Failover blackout", FormatBlackout(shard.failover_blackout())}},
      style);
  if (shard.poisoned_connections() == 0) return;
  out << "Poisoned:           " << FormatCount(shard.poisoned_connections(), "connection")
      << ", failed because workers died on "
      << (shard.poisoned_connections() == 1 ? "it\n" : "them\n");
}

std::string FormatPoisoned(const v1::PoisonedConnection& poisoned) {
  const bool message = poisoned.kind() == "send" || poisoned.kind() == "receive";
  return absl::StrCat(
      "connection ", poisoned.connection(), ", failed: ", poisoned.deaths(), " workers (",
      absl::StrJoin(poisoned.worker_ids(), ", "), ") died on its ", poisoned.kind(),
      message ? absl::StrCat(" ", poisoned.sequence()) : "",
      poisoned.guessed() ? ", the oldest completion; they did not tell which it was" : "");
}

void PrintWorkRequests(std::ostream& out, const v1::ReconciliationReport& report, uint64_t all,
                       const TableStyle& style) {
  const int recorded = report.work_requests_size();
  const int first = style.rows == 0 ? kFirstWorkRequests : std::max(style.rows - kOtherLines, 0);
  const int shown = style.wide ? recorded : std::min(recorded, first);
  if (shown == 0) {
    out << "  Work requests:           " << all << "; -o wide lists "
        << (static_cast<uint64_t>(recorded) == all ? "" : absl::StrCat(recorded, " of "))
        << "them\n";
    return;
  }
  out << "\n  Work requests (" << shown << " of " << all << "):\n";
  Table table({">CONNECTION", "QUEUE", ">SEQUENCE", "OPCODE", "OUTCOME"});
  for (int i = 0; i < shown; ++i) {
    const v1::WorkRequestOutcome& outcome = report.work_requests(i);
    table.Add({outcome.connection(), outcome.send() ? "send" : "receive", outcome.sequence(),
               outcome.opcode(), outcome.outcome()});
  }
  table.Print(out, "  ");
  if (shown < recorded) out << "  -o wide shows " << recorded - shown << " more\n";
}

void PrintReport(std::ostream& out, const v1::ReconciliationReport& report,
                 const TableStyle& style) {
  out << "\nLast change of owner:\n";
  PrintFields(
      out,
      {{"Cause", absl::StrCat(report.cause(), ", ended epoch ", report.epoch())},
       {"Time", FormatTime(report.unix_micros())},
       {"Owners", absl::StrCat(FormatWorker(report.former_worker_id()), ", then ",
                               FormatWorker(report.successor_worker_id()))},
       {"Transactions recovered",
        absl::StrCat(report.transactions_recovered(), " (committed, applied only at the cut)")},
       {"Never submitted",
        absl::StrCat(report.never_submitted(), " (committed, not yet posted: posted since)")},
       {"In flight", absl::StrCat(report.in_flight(), " (posted, no completion yet)")},
       {"Completed, undelivered",
        absl::StrCat(report.completed_undelivered(), " (the former owner had not read them)")},
       {"Delivered, uncommitted", absl::StrCat(report.delivered_uncommitted(),
                                               " (read, not acknowledged: delivered again)")}},
      style, "  ");
  if (report.ambiguous() != 0) {
    out << "  Ambiguous: " << report.ambiguous()
        << " (maybe posted by the former owner; the device has not told yet)\n";
  }
  if (report.has_poisoned()) {
    out << "\n  Poisoned: " << FormatPoisoned(report.poisoned()) << "\n";
  }
  if (report.work_requests().empty()) return;
  const uint64_t all = report.never_submitted() + report.in_flight() +
                       report.completed_undelivered() + report.delivered_uncommitted() +
                       report.ambiguous();
  PrintWorkRequests(out, report, all, style);
}

absl::Status DescribeShard(Invocation* invocation, ShardTarget target) {
  BATON_RETURN_IF_ERROR(
      ChooseServiceOf(invocation, Purpose::kLook, &target.service, &target.shard));
  if (!target.shard) {
    BATON_ASSIGN_OR_RETURN(target.shard, OnlyShard(invocation, target.service));
  }
  auto request = About<v1::GetShardRequest>(target.service);
  request.set_shard(static_cast<uint32_t>(*target.shard));
  BATON_ASSIGN_OR_RETURN(const v1::GetShardResponse response,
                         invocation->Ask(&Operator::GetShard, request));
  if (invocation->json) return invocation->PrintJson(response);
  PrintShard(invocation->out, target.service, response.shard(), invocation->style);
  if (response.shard().has_last_report()) {
    PrintReport(invocation->out, response.shard().last_report(), invocation->style);
  }
  return absl::OkStatus();
}

absl::Status ShardHistory(Invocation* invocation, ShardTarget past) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kLook, &past.service));
  auto request = About<v1::ListShardMovesRequest>(past.service);
  request.set_shard(past.shard ? static_cast<int32_t>(std::min<uint64_t>(*past.shard, INT32_MAX))
                               : -1);
  BATON_ASSIGN_OR_RETURN(const v1::ListShardMovesResponse response,
                         invocation->Ask(&Operator::ListShardMoves, request));
  if (invocation->json) return invocation->PrintJson(response);
  if (response.moves().empty()) {
    invocation->err << "no shard changed its owner since the driver started\n";
    return absl::OkStatus();
  }
  Table table({"TIME", ">SHARD", ">EPOCH", "CAUSE", ">FROM", ">TO", ">BLACKOUT", "+>RECOVERED",
               "+>NEVER SUBMITTED", "+>IN FLIGHT", "+>UNDELIVERED", "+>UNCOMMITTED", "+>AMBIGUOUS",
               "+POISONED"},
              invocation->style);
  for (const v1::ShardMove& move : response.moves()) {
    const v1::ReconciliationReport& report = move.report();
    table.Add({FormatTime(report.unix_micros()), move.shard(), report.epoch(), report.cause(),
               FormatWorkerId(report.former_worker_id()),
               FormatWorkerId(report.successor_worker_id()), FormatMove(move.blackout_us()),
               report.transactions_recovered(), report.never_submitted(), report.in_flight(),
               report.completed_undelivered(), report.delivered_uncommitted(), report.ambiguous(),
               report.has_poisoned() ? FormatPoisoned(report.poisoned()) : ""});
  }
  table.Print(invocation->out);
  return absl::OkStatus();
}

// How long an answer may take if the keeper chooses the time-out.
constexpr double kServiceTimeoutSeconds = 60;

struct HandoffOptions {
  std::string service;
  std::vector<uint32_t> shards;
  uint64_t to_worker = 0;
  double wait_seconds = 0;  // 0: the service's
  Change change;
};

absl::Status Handoff(Invocation* invocation, HandoffOptions options) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kChange, &options.service));
  auto request = About<v1::HandoffRequest>(options.service);
  for (const uint32_t shard : options.shards) request.add_shards(shard);
  request.set_to_worker_id(options.to_worker);
  request.set_timeout_ms(static_cast<uint32_t>(options.wait_seconds * 1000));
  if (options.change.dry_run) {
    return PrintPlan(invocation, PlanHandoff(invocation, &request), request);
  }
  BATON_RETURN_IF_ERROR(invocation->Connect().status());
  const double wait = options.wait_seconds > 0 ? options.wait_seconds : kServiceTimeoutSeconds;
  absl::StatusOr<v1::HandoffResponse> response;
  {
    const Progress progress(invocation, absl::StrCat("handing over service ", options.service),
                            "the owners release their shards");
    response = invocation->Ask(&Operator::Handoff, request, wait);
  }
  BATON_RETURN_IF_ERROR(response.status());
  if (invocation->json) return invocation->PrintJson(*response);
  PrintFields(invocation->out,
              {{"Shards moved", absl::StrCat(response->shards_size(), " (",
                                             absl::StrJoin(response->shards(), ", "), ")")},
               {"To worker", FormatWorkerId(response->to_worker_id())},
               {"Slowest blackout", FormatMicroseconds(response->slowest_blackout_us())}},
              invocation->style);
  invocation->PrintNext(
      absl::StrCat("`baton shard history ", options.service, "` shows what each move found"));
  return absl::OkStatus();
}

}  // namespace

void AddShardCommands(CLI::App* app, Invocation* invocation) {
  CLI::App* noun = AddNoun(app, "shard", "Shards: the unit that one worker owns");
  auto target = std::make_shared<ShardTarget>();
  CLI::App* list = noun->add_subcommand("list", "List the shards of a service");
  auto filter = std::make_shared<ShardFilter>();
  list->add_option("service", filter->service, kTheirService);
  AddNumber(list, "--owner", &filter->owner, "WORKER", "only those that this worker owns");
  AddChoice(list, "--state", &filter->state, {"owned", "waiting"}, "only those in this state");
  AddListingOptions(list, invocation);
  OnChosen(list, invocation, filter, ListShards);
  CLI::App* history = noun->add_subcommand(
      "history", "Show who had a service's shards, and what each change found");
  auto past = std::make_shared<ShardTarget>();
  history->add_option("service", past->service, kTheirService);
  AddNumber(history, "--shard", &past->shard, "SHARD", "only of this shard");
  AddListingOptions(history, invocation);
  OnChosen(history, invocation, past, ShardHistory);
  CLI::App* describe = noun->add_subcommand(
      "describe",
      "Show a shard, and what its last change of owner found.\n"
      "Of the work requests that were outstanding the first 20, on a terminal as many as "
      "it has room for; -o wide shows all that the keeper has recorded, at "
      "most 256");
  describe->add_option("service", target->service, kItsService);
  describe->add_option("shard", target->shard, "its number, from 0 [the only one]")
      ->check(CLI::Range(uint64_t{0}, uint64_t{UINT32_MAX}).description(""));
  AddWatchOption(describe, invocation);
  OnChosen(describe, invocation, target, DescribeShard);
}

void AddHandoffCommand(CLI::App* app, Invocation* invocation) {
  auto options = std::make_shared<HandoffOptions>();
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
  AddChangeOptions(command, &options->change, /*asks=*/false, invocation);
  OnChosen(command, invocation, options, Handoff);
}

}  // namespace baton
