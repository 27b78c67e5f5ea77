#include "tests/bench/side.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::bench {
namespace {

constexpr const char* kService = "bench";
constexpr std::chrono::seconds kStart{60};
constexpr int kFirstPort = 20000, kPorts = 20000;

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

absl::Status Side::StartCluster(const SideOptions& options,
                                std::vector<std::string> batond_arguments) {
  harness::ClusterOptions cluster;
  cluster.binaries = harness::Binaries(options.binary_directory);
  cluster.fabric = {options.device, options.host};
  cluster.service = kService;
  cluster.shards = 1;
  cluster.max_connections = 4;
  cluster.batond_arguments = std::move(batond_arguments);
  for (const char* const queue : {"--send-queue-depth", "--receive-queue-depth"}) {
    cluster.batond_arguments.insert(cluster.batond_arguments.end(), {queue, absl::StrCat(kSlots)});
  }
  BATON_ASSIGN_OR_RETURN(cluster_, harness::Cluster::Start(std::move(cluster)));
  const pid_t keeper = cluster_->batond().FindChild("baton-keeper");
  if (keeper == 0) return absl::InternalError("batond has no keeper");
  processes_.push_back(keeper);
  return absl::OkStatus();
}

// Its worker says nothing to us: where it listens is told it.
absl::StatusOr<std::unique_ptr<Side>> Side::StartNative(const SideOptions& options) {
  BATON_ASSIGN_OR_RETURN(const std::string object,
                         harness::Binaries(options.binary_directory).Find("bench-worker.so"));
  const uint16_t port = static_cast<uint16_t>(kFirstPort + getpid() % kPorts);
  std::vector<std::string> worker = {"--socket", "-",          "--service", kService,
                                     "--host",   options.host, "--port",    std::to_string(port)};
  worker.insert(worker.end(), options.worker_arguments.begin(), options.worker_arguments.end());
  std::vector<std::string> batond = {"--native", std::filesystem::absolute(object),
                                     "--native-workers", "1"};
  for (const std::string& argument : worker) batond.push_back("--native-argument=" + argument);
  auto side = std::make_unique<Side>();
  BATON_RETURN_IF_ERROR(side->StartCluster(options, std::move(batond)));
  // The keeper's one child serves.
  std::ifstream children(
      absl::StrCat("/proc/", side->processes_[0], "/task/", side->processes_[0], "/children"));
  pid_t owner = 0;
  children >> owner;
  side->processes_ = {owner};
  const auto deadline = std::chrono::steady_clock::now() + kStart;
  for (;;) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options.host, port);
    if (client.ok()) {
      side->client_ = *std::move(client);
      return side;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      side->DumpLogs();
      return client.status();
    }
    usleep(100'000);
  }
}

absl::StatusOr<std::unique_ptr<Side>> Side::StartBrokered(const SideOptions& options) {
  auto side = std::make_unique<Side>();
  BATON_RETURN_IF_ERROR(side->StartCluster(options, {}));
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
