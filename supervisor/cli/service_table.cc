#include "supervisor/cli/service_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/table.h"

namespace baton {

std::string FormatDevice(const v1::Service& service) {
  const v1::DeviceState& state = service.device_state();
  if (state.port() == 0) return service.device();
  std::string text = absl::StrCat(service.device(), ", ", state.transport());
  if (!state.network_interface().empty()) {
    absl::StrAppend(&text, " on ", state.network_interface());
  }
  absl::StrAppend(&text, ", port ", state.port(), " ", state.port_state(), ", MTU ",
                  state.active_mtu());
  if (!state.gid().empty()) absl::StrAppend(&text, ", GID ", state.gid());
  return text;
}

namespace {

// Short, unless something is wrong with it.
std::string NameDevice(const v1::Service& service) {
  const v1::DeviceState& state = service.device_state();
  if (state.port() == 0 || state.port_state() == "active") return service.device();
  return absl::StrCat(service.device(), " (port ", state.port_state(), ")");
}

}  // namespace

void PrintServices(std::ostream& out,
                   const google::protobuf::RepeatedPtrField<v1::Service>& services) {
  Table table({"SERVICE", "STATE", "DEVICE", ">SHARDS OWNED", ">WORKERS READY", ">CONNECTIONS",
               ">KEEPER", ">UP"});
  std::vector<std::string> problems;
  for (const v1::Service& service : services) {
    if (!service.reachable()) {
      table.Add({service.name(), "unreachable", "", "", "", "", "", ""});
      problems.push_back(absl::StrCat(service.name(), ": ", service.problem()));
      continue;
    }
    const bool whole = service.shards_owned() == service.shard_count();
    table.Add({service.name(), whole ? "ok" : "waiting", NameDevice(service),
               absl::StrCat(service.shards_owned(), "/", service.shard_count()),
               absl::StrCat(service.ready_workers(), "/", service.worker_count()),
               absl::StrCat(service.connection_count(), "/", service.max_connections()),
               absl::StrCat(service.keeper_pid()), FormatDuration(service.uptime_seconds())});
  }
  if (table.empty()) return;
  table.Print(out);
  if (!problems.empty()) out << "\nProblems:\n  " << absl::StrJoin(problems, "\n  ") << '\n';
}

void PrintWorkers(std::ostream& out,
                  const std::vector<std::pair<std::string, v1::Worker>>& workers) {
  Table table({"SERVICE", ">ID", "NAME", "VERSION", "STATE", ">PID", ">UID", "SHARDS", "STREAM",
               "HEALTH", ">ATTACHED"});
  for (const auto& [service, worker] : workers) {
    table.Add({service, absl::StrCat(worker.id()), worker.name(), worker.version(),
               FormatState(worker.state()), absl::StrCat(worker.pid()), absl::StrCat(worker.uid()),
               absl::StrJoin(worker.shards(), ","), worker.control_stream() ? "open" : "none",
               worker.healthy() ? "ok" : "bad", FormatDuration(worker.attached_seconds())});
  }
  table.Print(out);
}

void PrintShards(std::ostream& out, const std::vector<v1::Shard>& shards) {
  Table table({">SHARD", ">EPOCH", ">OWNER", ">HEIR", ">CONNECTIONS", ">COMMITS", ">IN FLIGHT",
               ">COMPLETIONS", ">UNACKED", "WAITING FOR"});
  for (const v1::Shard& shard : shards) {
    table.Add({absl::StrCat(shard.index()), absl::StrCat(shard.epoch()),
               FormatWorkerId(shard.owner_worker_id()), FormatWorkerId(shard.heir_worker_id()),
               absl::StrCat(shard.connections()), absl::StrCat(shard.commits()),
               absl::StrCat(shard.send_requests_in_flight()), absl::StrCat(shard.completions()),
               absl::StrCat(shard.completions_unacknowledged()), shard.waiting_reason()});
  }
  table.Print(out);
}

}  // namespace baton
