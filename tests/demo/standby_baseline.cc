#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "tests/demo/cpu_meter.h"
#include "tests/demo/measure.h"
#include "tests/demo/scenario.h"
#include "tests/harness/standby_pair.h"
#include "tests/harness/temp_directory.h"

namespace baton::demo {
namespace {

class Act {
 public:
  Act(const DemoOptions& options, harness::TempDirectory directory, ActResult* result,
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

}  // namespace

ActResult RunStandbyBaseline(const DemoOptions& options, uint64_t rate,
                             const std::string& timeline_path, Progress* progress) {
  progress->BeginAct("Without Baton, clients with two connections", /*with_baton=*/false,
                     timeline_path);
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

}  // namespace baton::demo
