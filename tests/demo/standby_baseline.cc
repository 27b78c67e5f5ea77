#include <cstdio>
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
  Act(const DemoOptions& options, harness::TempDirectory directory, ActResult* result)
      : options_(options), directory_(std::move(directory)), result_(result) {}

  absl::Status Run() {
    BATON_RETURN_IF_ERROR(Start());
    for (uint32_t i = 0; i < options_.baseline_runs; ++i) BATON_RETURN_IF_ERROR(Drain());
    for (uint32_t i = 0; i < options_.baseline_runs; ++i) BATON_RETURN_IF_ERROR(Crash());
    LetTrafficRun();
    BATON_ASSIGN_OR_RETURN(result_->peer, peer_->Stop());
    result_->peer_finished = true;
    return absl::OkStatus();
  }

 private:
  absl::Status Start() {
    harness::StandbyPairOptions pair;
    pair.binary_directory = options_.binary_directory;
    pair.log_path = directory_.File("server.log");
    pair.fabric = options_.fabric;
    pair.connections = options_.connections;
    pair.arguments = options_.PriorityArguments();
    BATON_ASSIGN_OR_RETURN(pair_, harness::StandbyPair::Start(std::move(pair)));
    BATON_ASSIGN_OR_RETURN(harness::PeerOptions peer,
                           ClientsFor(options_, directory_, result_->rate));
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
                                  action, &result_->events));
    return pair_->Succeed();
  }

  const DemoOptions& options_;
  const harness::TempDirectory directory_;
  ActResult* const result_;
  std::unique_ptr<harness::StandbyPair> pair_;
  std::unique_ptr<harness::PeerProcess> peer_;
};

}  // namespace

ActResult RunStandbyBaseline(const DemoOptions& options, uint64_t rate) {
  std::fprintf(stderr,
               "the same service without Baton, whose clients have connections to a standby, told "
               "to move, and killed:\n");
  ActResult result;
  result.rate = rate;
  const CpuTimes before = ReadCpuTimes();
  absl::StatusOr<harness::TempDirectory> directory = harness::TempDirectory::Create();
  result.status =
      directory.ok() ? Act(options, *std::move(directory), &result).Run() : directory.status();
  result.cores_of_others = (ReadCpuTimes() - before).CoresUsedByOthers();
  return result;
}

}  // namespace baton::demo
