#include "tests/bench/server.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/child_process.h"

namespace baton::bench {
namespace {

constexpr const char* kService = "bench";
constexpr std::chrono::seconds kStart{60};

void Append(const std::vector<std::string>& more, std::vector<std::string>* arguments) {
  arguments->insert(arguments->end(), more.begin(), more.end());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(SideName side, const ServerOptions& options) {
  auto server = std::make_unique<Server>();
  absl::Status status = server->Open(side, options);
  if (status.ok()) return server;
  server->DumpLogs();
  return status;
}

absl::Status Server::Open(SideName side, const ServerOptions& options) {
  switch (side) {
    case SideName::kPolling:
      return StartRaw(options, "--poll");
    case SideName::kEvents:
      return StartRaw(options, nullptr);
    case SideName::kRelayed:
      return StartRaw(options, "--relay");
    case SideName::kBrokered:
      return StartBrokered(options);
    case SideName::kNative:
      return StartNative(options);
  }
  return absl::InvalidArgumentError("no such side");
}

absl::Status Server::StartProcess(const harness::ChildOptions& program) {
  BATON_ASSIGN_OR_RETURN(process_, harness::ChildProcess::Start(program));
  BATON_ASSIGN_OR_RETURN(const std::string line,
                         process_->ReadLineWith("bench server ready", kStart));
  unsigned port = 0;
  if (std::sscanf(line.c_str(), "bench server ready port=%u", &port) != 1) {
    return absl::InternalError("a server said \"" + line + "\"");
  }
  processes_.push_back(process_->pid());
  port_ = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

absl::Status Server::StartRaw(const ServerOptions& options, const char* how) {
  harness::ChildOptions program;
  BATON_ASSIGN_OR_RETURN(program.program,
                         harness::Binaries(options.binary_directory).Find(options.raw_program));
  program.arguments = {"--host", options.host};
  if (how != nullptr) program.arguments.emplace_back(how);
  Append(options.raw_arguments, &program.arguments);
  return StartProcess(program);
}

absl::Status Server::StartCluster(const ServerOptions& options,
                                  std::vector<std::string> batond_arguments) {
  harness::ClusterOptions cluster;
  cluster.yield_microseconds = 0;
  cluster.binaries = harness::Binaries(options.binary_directory);
  cluster.fabric = {options.device, options.host};
  cluster.service = kService;
  cluster.shards = 1;
  cluster.max_connections = options.max_connections;
  cluster.batond_arguments = std::move(batond_arguments);
  Append(options.batond_arguments, &cluster.batond_arguments);
  for (const char* const queue : {"--send-queue-depth", "--receive-queue-depth"}) {
    Append({queue, absl::StrCat(options.queue_depth)}, &cluster.batond_arguments);
  }
  BATON_ASSIGN_OR_RETURN(cluster_, harness::Cluster::Start(std::move(cluster)));
  const pid_t driver = cluster_->batond().FindChild("baton-driver");
  if (driver == 0) return absl::InternalError("batond has no driver");
  processes_.push_back(driver);
  return absl::OkStatus();
}

absl::Status Server::StartBrokered(const ServerOptions& options) {
  BATON_RETURN_IF_ERROR(StartCluster(options, {}));
  harness::ChildOptions program;
  BATON_ASSIGN_OR_RETURN(program.program,
                         harness::Binaries(options.binary_directory).Find(options.worker_program));
  program.arguments = {"--socket",  cluster_->SocketPath(), "--service", kService, "--host",
                       options.host};
  Append(options.worker_arguments, &program.arguments);
  return StartProcess(program);
}

absl::Status Server::StartNative(const ServerOptions& options) {
  BATON_ASSIGN_OR_RETURN(
      const std::string object,
      harness::Binaries(options.binary_directory).Find(options.worker_program + ".so"));
  std::vector<std::string> worker = {"--socket", "-",      "--service",
                                     kService,   "--host", options.host};
  Append(options.worker_arguments, &worker);
  std::vector<std::string> batond = {"--native", std::filesystem::absolute(object),
                                     "--native-workers", "1"};
  for (const std::string& argument : worker) batond.push_back("--native-argument=" + argument);
  BATON_RETURN_IF_ERROR(StartCluster(options, std::move(batond)));
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilListening());
  port_ = cluster_->port();
  return FindNativeOwner();
}

// The one child of the driver that is no program of Baton's.
absl::Status Server::FindNativeOwner() {
  for (const pid_t child : harness::ChildrenOf(processes_.at(0))) {
    const std::string name = harness::StatusOf(child, "Name");
    if (name == "baton-keeper" || name == "baton-nic") continue;
    processes_ = {child};
    return absl::OkStatus();
  }
  return absl::InternalError("the driver has no native worker");
}

void Server::DumpLogs() const {
  if (cluster_ != nullptr) cluster_->DumpLogs();
}

}  // namespace baton::bench
