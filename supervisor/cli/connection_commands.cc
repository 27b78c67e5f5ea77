#include <map>
#include <optional>
#include <set>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"

namespace baton {
namespace {

constexpr uint32_t kPage = 5000;

struct ConnectionTarget {
  std::string service;
  std::optional<uint64_t> connection;  // nothing: the only one
};

struct ConnectionFilter {
  std::string service;
  int32_t shard = -1;
  std::optional<uint64_t> owner;
  std::string state;
};

// Returns all pages as one answer.
absl::StatusOr<v1::ListConnectionsResponse> AllConnections(Invocation* invocation,
                                                           const ConnectionFilter& filter) {
  auto request = About<v1::ListConnectionsRequest>(filter.service);
  request.set_shard(filter.shard);
  request.set_page_size(kPage);
  v1::ListConnectionsResponse all;
  for (;;) {
    BATON_ASSIGN_OR_RETURN(v1::ListConnectionsResponse page,
                           invocation->Ask(&Operator::ListConnections, request));
    const uint32_t next = page.next_page_start();
    all.MergeFrom(page);
    all.set_next_page_start(0);
    if (next <= request.page_start()) return all;
    request.set_page_start(next);
  }
}

std::string FormatCursors(uint64_t completed, uint64_t posted, uint64_t committed) {
  return absl::StrCat(completed, "/", posted, "/", committed);
}

// "32 messages, 4.1ms at the rate so far": how much a peer can send while no worker serves it.
std::string FormatReceiveWindow(const v1::Connection& one) {
  std::string messages = absl::StrCat(one.receive_window(), " messages",
                                      one.receive_window_shared() ? " of all in the shard" : "");
  if (one.receive_window_us() == 0) return messages;
  return absl::StrCat(messages, ", ", FormatMicroseconds(one.receive_window_us()),
                      " at the rate so far");
}

// "16 at a time to the peer, 1 from it": limits of READs and atomics.
std::string FormatDepths(const v1::Connection& one) {
  if (!one.has_initiator_depth()) return "";
  return absl::StrCat(one.initiator_depth(), " at a time to the peer, ", one.responder_resources(),
                      " from it");
}

// Returns the shards of `owner`, because a connection's description lacks its shard's owner.
absl::StatusOr<std::set<uint32_t>> ShardsOf(Invocation* invocation, const std::string& service,
                                            uint64_t owner) {
  BATON_ASSIGN_OR_RETURN(
      const v1::ListShardsResponse response,
      invocation->Ask(&Operator::ListShards, About<v1::ListShardsRequest>(service)));
  std::set<uint32_t> shards;
  for (const v1::ShardOfService& item : response.shards()) {
    if (item.shard().owner_worker_id() == owner) shards.insert(item.shard().index());
  }
  return shards;
}

absl::StatusOr<v1::ListConnectionsResponse> Filtered(Invocation* invocation,
                                                     const ConnectionFilter& filter) {
  std::optional<std::set<uint32_t>> shards;
  if (filter.owner) {
    BATON_ASSIGN_OR_RETURN(shards, ShardsOf(invocation, filter.service, *filter.owner));
  }
  BATON_ASSIGN_OR_RETURN(v1::ListConnectionsResponse all, AllConnections(invocation, filter));
  KeepIf(all.mutable_connections(), [&](const v1::ConnectionOfService& item) {
    const v1::Connection& one = item.connection();
    return (!shards || shards->count(one.shard()) > 0) &&
           (filter.state.empty() || FormatState(one.state()) == filter.state);
  });
  SortBy(all.mutable_connections(),
         [](const v1::ConnectionOfService& item) { return item.connection().index(); });
  return all;
}

// Prints "1000 connections: 2 draining, 998 established" below a list that is longer than the
// screen.
void PrintSum(Invocation* invocation, const v1::ListConnectionsResponse& response) {
  const TableStyle& style = invocation->style;
  if (style.rows == 0 || invocation->watch_seconds > 0 ||
      response.connections_size() < style.rows) {
    return;
  }
  std::map<std::string, int> states;
  for (const auto& item : response.connections()) ++states[FormatState(item.connection().state())];
  invocation->err << response.connections_size() << " connections: "
                  << absl::StrJoin(states, ", ",
                                   [](std::string* text, const auto& one) {
                                     absl::StrAppend(text, one.second, " ", one.first);
                                   })
                  << "; --shard, --owner and --state choose some\n";
}

absl::Status ListConnections(Invocation* invocation, ConnectionFilter filter) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kLook, &filter.service));
  BATON_ASSIGN_OR_RETURN(const auto response, Filtered(invocation, filter));
  if (invocation->json) return invocation->PrintJson(response);
  Table table({">CONNECTION", ">SHARD", "!STATE", "PEER", ">SENDS", ">RECEIVES", "ERROR", "+LOCAL",
               "+>QP", "+>GENERATION", "+>OUTSTANDING", "+>RECEIVED", "+>WINDOW", "+>STATE"},
              invocation->style);
  for (const auto& item : response.connections()) {
    const v1::Connection& one = item.connection();
    table.Add({one.index(), one.shard(), FormatState(one.state()), one.peer_address(),
               one.sends_completed(), one.receives_completed(), one.last_error(),
               one.local_address(), one.qp_number(), one.generation(),
               absl::StrCat(one.sends_committed() - one.sends_completed()),
               FormatBytes(one.bytes_received()), one.receive_window(),
               FormatBytes(one.state_length())});
  }
  const bool all = filter.shard < 0 && !filter.owner && filter.state.empty();
  if (table.empty()) {
    invocation->err << (all ? "no connections\n" : "no such connections\n");
  } else {
    table.Print(invocation->out);
    invocation->out.flush();
    PrintSum(invocation, response);
  }
  return absl::OkStatus();
}

absl::Status DescribeConnection(Invocation* invocation, ConnectionTarget target) {
  BATON_RETURN_IF_ERROR(
      ChooseServiceOf(invocation, Purpose::kLook, &target.service, &target.connection));
  if (!target.connection) {
    BATON_ASSIGN_OR_RETURN(target.connection, OnlyConnection(invocation, target.service));
  }
  auto request = About<v1::GetConnectionRequest>(target.service);
  request.set_connection(static_cast<uint32_t>(*target.connection));
  BATON_ASSIGN_OR_RETURN(const v1::GetConnectionResponse response,
                         invocation->Ask(&Operator::GetConnection, request));
  if (invocation->json) return invocation->PrintJson(response);
  const v1::Connection& one = response.connection();
  PrintFields(
      invocation->out,
      {{"Connection", absl::StrCat(one.index(), " (generation ", one.generation(), ") of service ",
                                   target.service)},
       {"Shard", absl::StrCat(one.shard())},
       {"!State", FormatState(one.state())},
       {"Queue pair", absl::StrCat(one.qp_number())},
       {"Local address", one.local_address()},
       {"Peer address", one.peer_address()},
       {"Sends", absl::StrCat(FormatCursors(one.sends_completed(), one.sends_posted(),
                                            one.sends_committed()),
                              " completed/posted/committed")},
       {"Receives", absl::StrCat(FormatCursors(one.receives_completed(), one.receives_posted(),
                                               one.receives_committed()),
                                 " completed/posted/committed")},
       {"Receive window", FormatReceiveWindow(one)},
       {"READs, atomics", FormatDepths(one)},
       {"Received", FormatBytes(one.bytes_received())},
       {"Application state",
        absl::StrCat(FormatBytes(one.state_length()), ", format version ", one.state_version())},
       {"Last error", one.last_error()}},
      invocation->style);
  return absl::OkStatus();
}

}  // namespace

void AddConnectionCommands(CLI::App* app, Invocation* invocation) {
  CLI::App* noun = AddNoun(app, "connection", "Connections of a service");
  auto target = std::make_shared<ConnectionTarget>();
  CLI::App* list = noun->add_subcommand("list", "List the connections of a service");
  auto filter = std::make_shared<ConnectionFilter>();
  list->add_option("service", filter->service, kTheirService);
  list->add_option("--shard", filter->shard, "only those of this shard")
      ->type_name("SHARD")
      ->check(CLI::NonNegativeNumber);
  AddNumber(list, "--owner", &filter->owner, "WORKER", "only those whose shard this worker owns");
  AddChoice(list, "--state", &filter->state,
            {"requested", "connecting", "established", "draining", "closed"},
            "only those in this state");
  AddListingOptions(list, invocation);
  OnChosen(list, invocation, filter, ListConnections);
  CLI::App* describe = noun->add_subcommand("describe", "Show a connection");
  describe->add_option("service", target->service, kItsService);
  describe->add_option("connection", target->connection, "its number, as listed [the only one]")
      ->check(CLI::Range(uint64_t{0}, uint64_t{UINT32_MAX}).description(""));
  AddWatchOption(describe, invocation);
  OnChosen(describe, invocation, target, DescribeConnection);
}

}  // namespace baton
