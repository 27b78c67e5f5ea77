#include "tests/bench/side.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "lib/base/status_macros.h"

namespace baton::bench {
namespace {

constexpr const char* kService = "bench";
constexpr std::chrono::seconds kStart{60};

}  // namespace

absl::Status Side::Start(harness::ChildOptions program, const std::string& host) {
  BATON_ASSIGN_OR_RETURN(server_, harness::ChildProcess::Start(program));
  BATON_ASSIGN_OR_RETURN(const std::string line,
                         server_->ReadLineWith("bench server ready", kStart));
  unsigned port = 0;
  if (std::sscanf(line.c_str(), "bench server ready port=%u", &port) != 1) {
    return absl::InternalError("a server said \"" + line + "\"");
  }
  processes_.push_back(server_->pid());
  BATON_ASSIGN_OR_RETURN(client_, Client::Connect(host, static_cast<uint16_t>(port)));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Side>> Side::StartRaw(const SideOptions& options, bool polls) {
  auto side = std::make_unique<Side>();
  harness::ChildOptions program;
  BATON_ASSIGN_OR_RETURN(program.program,
                         harness::Binaries(options.binary_directory).Find("bench-raw-server"));
  program.arguments = {"--host", options.host};
  if (polls) program.arguments.emplace_back("--poll");
  BATON_RETURN_IF_ERROR(side->Start(std::move(program), options.host));
  return side;
}

absl::StatusOr<std::unique_ptr<Side>> Side::StartBrokered(const SideOptions& options) {
  auto side = std::make_unique<Side>();
  harness::ClusterOptions cluster;
  cluster.binaries = harness::Binaries(options.binary_directory);
  cluster.fabric = {options.device, options.host};
  cluster.service = kService;
  cluster.shards = 1;
  cluster.max_connections = 4;
  BATON_ASSIGN_OR_RETURN(side->cluster_, harness::Cluster::Start(std::move(cluster)));
  const pid_t keeper = side->cluster_->batond().FindChild("baton-keeper");
  if (keeper == 0) return absl::InternalError("batond has no keeper");
  side->processes_.push_back(keeper);
  harness::ChildOptions program;
  BATON_ASSIGN_OR_RETURN(program.program,
                         harness::Binaries(options.binary_directory).Find("bench-worker"));
  program.arguments = {"--socket",  side->cluster_->SocketPath(), "--service", kService, "--host",
                       options.host};
  program.arguments.insert(program.arguments.end(), options.worker_arguments.begin(),
                           options.worker_arguments.end());
  const absl::Status started = side->Start(std::move(program), options.host);
  if (!started.ok()) {
    side->DumpLogs();
    return started;
  }
  return side;
}

void Side::DumpLogs() const {
  if (cluster_ != nullptr) cluster_->DumpLogs();
}

}  // namespace baton::bench
