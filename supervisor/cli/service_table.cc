#include "supervisor/cli/service_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "supervisor/cli/format.h"

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

std::string FormatListeners(const v1::Service& service, const std::string& separator) {
  return absl::StrJoin(service.listeners(), separator,
                       [](std::string* text, const v1::Listener& listener) {
                         absl::StrAppend(text, listener.host(), ":", listener.port());
                       });
}

namespace {

// Names the device, and its port's state if it is not active.
std::string NameDevice(const v1::Service& service) {
  const v1::DeviceState& state = service.device_state();
  if (state.port() == 0 || state.port_state() == "active") return service.device();
  return absl::StrCat(service.device(), " (port ", state.port_state(), ")");
}

// "31us/45us/45us"
std::string FormatQuantiles(const v1::BlackoutSummary& blackout) {
  if (blackout.count() == 0) return "";
  return absl::StrCat(FormatMicroseconds(blackout.p50_us()), "/",
                      FormatMicroseconds(blackout.p99_us()), "/",
                      FormatMicroseconds(blackout.max_us()));
}

}  // namespace

std::string StateOf(const v1::Service& service) {
  if (!service.reachable()) return "unreachable";
  if (service.shards_owned() != service.shard_count()) return "waiting";
  return service.has_drain() ? "drained" : "ok";
}

std::string NextForServices(const google::protobuf::RepeatedPtrField<v1::Service>& services) {
  for (const v1::Service& service : services) {
    if (!service.reachable() || service.worker_count() > 0) continue;
    return absl::StrCat("start a worker of service ", service.name(), ", with its socket ",
                        service.worker_socket());
  }
  return "";
}

void PrintServices(std::ostream& out,
                   const google::protobuf::RepeatedPtrField<v1::Service>& services,
                   TableStyle style) {
  Table table({"SERVICE", "!STATE", "DEVICE", ">SHARDS", ">WORKERS", ">CONNECTIONS", ">KEEPER PID",
               ">UP", "+RELEASE", "+>BUFFERS", "+LISTENERS", "+HANDOFF P50/P99/MAX",
               "+FAILOVER P50/P99/MAX", "+UPGRADE"},
              style);
  std::vector<std::string> problems;
  for (const v1::Service& service : services) {
    if (!service.reachable()) {
      table.Add({service.name(), StateOf(service)});
      problems.push_back(absl::StrCat(service.name(), ": ", Printable(service.problem())));
      continue;
    }
    table.Add(
        {service.name(), StateOf(service), NameDevice(service),
         absl::StrCat(service.shards_owned(), "/", service.shard_count()),
         absl::StrCat(service.ready_workers(), "/", service.worker_count()),
         absl::StrCat(service.connection_count(), "/", service.max_connections()),
         service.keeper_pid(), FormatDuration(service.uptime_seconds()),
         service.version().release(),
         FormatBuffers(service.buffer_bytes(), service.shard_count(), service.shard_heap_bytes()),
         FormatListeners(service, ","), FormatQuantiles(service.handoff_blackout()),
         FormatQuantiles(service.failover_blackout()),
         service.has_upgrade() ? FormatState(service.upgrade().phase()) : ""});
  }
  if (table.empty()) return;
  table.Print(out);
  if (!problems.empty()) out << "\nProblems:\n  " << absl::StrJoin(problems, "\n  ") << '\n';
}

void PrintWorkers(std::ostream& out, const std::vector<std::pair<std::string, v1::Worker>>& workers,
                  TableStyle style) {
  Table table(
      {"SERVICE", ">ID", "NAME", "VERSION", "!STATE", ">PID", "SHARDS", "!HEALTH", ">ATTACHED",
       "+>UID", "+STREAM", "+>HEARTBEATS", "+>LAST", "+READS", "+>WRITES", "+HEALTH DETAIL"},
      style);
  for (const auto& [service, worker] : workers) {
    const bool owner = worker.shards_size() > 0;
    table.Add(
        {service, worker.id(), worker.name(), worker.version(), FormatState(worker.state()),
         worker.pid(), absl::StrJoin(worker.shards(), ","), worker.healthy() ? "ok" : "bad",
         FormatAgo(worker.attached_seconds()), worker.uid(),
         worker.control_stream() ? "open" : "none", worker.heartbeats(),
         owner ? FormatAgo(worker.seconds_since_heartbeat()) : "",
         absl::StrCat(worker.reads_state_version_min(), "-", worker.reads_state_version_max()),
         worker.writes_state_version(), worker.health_detail()});
  }
  table.Print(out);
}

void PrintShards(std::ostream& out, const std::vector<v1::Shard>& shards, TableStyle style) {
  Table table({">SHARD", ">EPOCH", ">OWNER", ">HEIR", ">CONNECTIONS", ">COMMITS", ">IN FLIGHT",
               "+>COMPLETIONS", "+>UNACKED", "+>SENDS", "+>RECEIVES", "+>POISONED", "+LAST CHANGE",
               "+HANDOFF P50/P99/MAX", "+FAILOVER P50/P99/MAX", "WAITING FOR"},
              style);
  for (const v1::Shard& shard : shards) {
    table.Add({shard.index(), shard.epoch(), FormatWorkerId(shard.owner_worker_id()),
               FormatWorkerId(shard.heir_worker_id()), shard.connections(), shard.commits(),
               shard.send_requests_in_flight(), shard.completions(),
               shard.completions_unacknowledged(), shard.sends_posted(), shard.receives_posted(),
               shard.poisoned_connections(), shard.last_report().cause(),
               FormatQuantiles(shard.handoff_blackout()),
               FormatQuantiles(shard.failover_blackout()), shard.waiting_reason()});
  }
  table.Print(out);
}

}  // namespace baton
