#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/demo/cpu_meter.h"
#include "tests/demo/measure.h"
#include "tests/demo/scenario.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/standby_pair.h"
#include "tests/harness/temp_directory.h"

namespace baton::demo {
namespace {

constexpr std::chrono::seconds kStart{30};

class ReconnectAct {
 public:
  ReconnectAct(const DemoOptions& options, harness::TempDirectory directory, ActResult* result,
               Progress* progress)
      : options_(options), directory_(std::move(directory)), result_(result), progress_(progress) {}

  absl::Status Run(const std::string& timeline_path) {
    BATON_ASSIGN_OR_RETURN(program_,
                           harness::Binaries(options_.binary_directory).Find("ledger-baseline"));
    BATON_ASSIGN_OR_RETURN(server_, StartServer(/*predecessor=*/0));
    BATON_RETURN_IF_ERROR(WaitUntilItListens(*server_));
    BATON_ASSIGN_OR_RETURN(harness::PeerOptions peer,
                           ClientsFor(options_, directory_, result_->rate));
    peer.timeline_path = timeline_path;
    peer.port = port_;
    peer.reconnect = true;
    result_->start_us = MonotonicNanoseconds() / 1000;
    BATON_ASSIGN_OR_RETURN(peer_, harness::PeerProcess::Start(peer));
    for (uint32_t i = 0; i < options_.baseline_runs; ++i) BATON_RETURN_IF_ERROR(Crash());
    LetTrafficRun();
    BATON_ASSIGN_OR_RETURN(result_->peer, peer_->Stop());
    result_->peer_finished = true;
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::unique_ptr<harness::ChildProcess>> StartServer(pid_t predecessor) {
    harness::ChildOptions child;
    child.program = program_;
    child.log_path = directory_.File("server.log");
    child.arguments = {"--device",      options_.fabric.device,
                       "--listen",      absl::StrCat(options_.fabric.host, ":", port_),
                       "--connections", absl::StrCat(options_.connections)};
    for (const std::string& argument : options_.PriorityArguments()) {
      child.arguments.push_back(argument);
    }
    if (predecessor != 0) {
      child.arguments.insert(child.arguments.end(), {"--wait-for-pid", absl::StrCat(predecessor)});
    }
    return harness::ChildProcess::Start(child);
  }

  absl::Status WaitUntilItListens(harness::ChildProcess& server) {
    const std::string beginning = "ledger-baseline ready port=";
    BATON_ASSIGN_OR_RETURN(const std::string line, server.ReadLineWith(beginning, kStart));
    port_ = static_cast<uint16_t>(std::atoi(line.c_str() + beginning.size()));
    return absl::OkStatus();
  }

  absl::Status Crash() {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<harness::ChildProcess> successor,
                           StartServer(server_->pid()));
    BATON_RETURN_IF_ERROR(successor->ReadLineWith("ledger-baseline warm", kStart).status());
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kBaseline,
        {.connections = options_.connections, .version = 0, .disconnects = true},
        [&] { return server_->Kill(); }, progress_, &result_->events));
    BATON_RETURN_IF_ERROR(WaitUntilItListens(*successor));
    server_ = std::move(successor);
    return absl::OkStatus();
  }

  const DemoOptions& options_;
  const harness::TempDirectory directory_;
  ActResult* const result_;
  Progress* const progress_;
  std::string program_;
  uint16_t port_ = 0;
  std::unique_ptr<harness::ChildProcess> server_;
  std::unique_ptr<harness::PeerProcess> peer_;
};

class StandbyAct {
 public:
  StandbyAct(const DemoOptions& options, harness::TempDirectory directory, ActResult* result,
             Progress* progress)
      : options_(options), directory_(std::move(directory)), result_(result), progress_(progress) {}

  absl::Status Run(const std::string& timeline_path) {
    BATON_RETURN_IF_ERROR(Start(timeline_path));
    for (uint32_t i = 0; i < options_.baseline_runs; ++i) BATON_RETURN_IF_ERROR(Drain());
    for (uint32_t i = 0; i < options_.baseline_runs; ++i) BATON_RETURN_IF_ERROR(Crash());
    LetTrafficRun();
    BATON_ASSIGN_OR_RETURN(result_->peer, peer_->Stop());
    result_->peer_finished = true;
    return absl::OkStatus();
  }

 private:
  absl::Status Start(const std::string& timeline_path) {
    harness::StandbyPairOptions pair;
    pair.binary_directory = options_.binary_directory;
    pair.log_path = directory_.File("server.log");
    pair.fabric = options_.fabric;
    pair.connections = options_.connections;
    pair.arguments = options_.PriorityArguments();
    BATON_ASSIGN_OR_RETURN(pair_, harness::StandbyPair::Start(std::move(pair)));
    BATON_ASSIGN_OR_RETURN(harness::PeerOptions peer,
                           ClientsFor(options_, directory_, result_->rate));
    peer.timeline_path = timeline_path;
    pair_->SetAddresses(&peer);
    result_->start_us = MonotonicNanoseconds() / 1000;
    BATON_ASSIGN_OR_RETURN(peer_, harness::PeerProcess::Start(peer));
    return absl::OkStatus();
  }

  // The first replies tell the clients to move. What the standby answers comes after those.
  absl::Status Drain() {
    return Do(EventKind::kStandbyDrain, [this]() -> absl::Status {
      BATON_RETURN_IF_ERROR(pair_->Drain());
      return peer_->Settle();
    });
  }

  // A process that was signalled may still answer until it is gone.
  absl::Status Crash() {
    return Do(EventKind::kStandbyCrash, [this]() -> absl::Status {
      BATON_RETURN_IF_ERROR(pair_->Crash());
      return pair_->AwaitEnd();
    });
  }

  absl::Status Do(EventKind kind, const std::function<absl::Status()>& action) {
    BATON_RETURN_IF_ERROR(pair_->StandBy());
    BATON_RETURN_IF_ERROR(peer_->AwaitSpares(options_.connections));
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(*peer_, kind,
                                  {.connections = options_.connections,
                                   .version = pair_->standby_version(),
                                   .disconnects = true},
                                  action, progress_, &result_->events));
    return pair_->Succeed();
  }

  const DemoOptions& options_;
  const harness::TempDirectory directory_;
  ActResult* const result_;
  Progress* const progress_;
  std::unique_ptr<harness::StandbyPair> pair_;
  std::unique_ptr<harness::PeerProcess> peer_;
};

template <typename Act>
ActResult RunAct(const char* title, const DemoOptions& options, uint64_t rate,
                 const std::string& timeline_path, Progress* progress) {
  progress->BeginAct(title, /*with_baton=*/false, timeline_path);
  ActResult result;
  result.rate = rate;
  const CpuTimes before = ReadCpuTimes();
  absl::StatusOr<harness::TempDirectory> directory = harness::TempDirectory::Create();
  result.status = directory.ok()
                      ? Act(options, *std::move(directory), &result, progress).Run(timeline_path)
                      : directory.status();
  if (result.peer_finished) progress->EndAct(CountersOf(result));
  result.cores_of_others = (ReadCpuTimes() - before).CoresUsedByOthers();
  return result;
}

}  // namespace

ActResult RunBaseline(const DemoOptions& options, uint64_t rate, const std::string& timeline_path,
                      Progress* progress) {
  return RunAct<ReconnectAct>("Without Baton, clients reconnect", options, rate, timeline_path,
                              progress);
}

ActResult RunStandbyBaseline(const DemoOptions& options, uint64_t rate,
                             const std::string& timeline_path, Progress* progress) {
  return RunAct<StandbyAct>("Without Baton, clients with two connections", options, rate,
                            timeline_path, progress);
}

}  // namespace baton::demo
