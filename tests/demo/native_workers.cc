// Workers that the keeper forks: one more whenever one has ended, with the object that serves. The
// demonstration hands the shards to one of them, kills, and waits until there are as many again.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/demo/workers.h"
#include "tests/harness/poison_peer.h"
#include "tests/harness/wait_until.h"

namespace baton::demo {
namespace {

constexpr int kWorkers = 2;  // the owner, and one that stands by
// The keeper waits before it forks in the place of one that ended soon after its own start.
constexpr std::chrono::seconds kFork{20};
constexpr uint32_t kWatchMs = 500;

class NativeWorkers final : public Workers {
 public:
  explicit NativeWorkers(const DemoOptions& options) : Workers(options) {}

  absl::Status Configure(harness::ClusterOptions* options) const override {
    BATON_ASSIGN_OR_RETURN(options->native_object,
                           options->binaries.Find(ProgramNamed("ledger-v1")));
    options->native_arguments = options_.PriorityArguments();
    options->batond_arguments.insert(options->batond_arguments.end(),
                                     {"--native-workers", std::to_string(kWorkers)});
    return absl::OkStatus();
  }

  absl::Status Start(harness::Cluster* cluster) override {
    cluster_ = cluster;
    BATON_RETURN_IF_ERROR(cluster_->WaitUntilListening());
    return Regroup();
  }
  absl::Status Finish() override { return absl::OkStatus(); }  // batond ends them

  absl::Status StandBy() override { return standby_ != nullptr ? absl::OkStatus() : Regroup(); }
  // The keeper would fork another one: it is killed together with the owner.
  absl::Status DismissStandby() override { return absl::OkStatus(); }

  absl::Status KillAll() override {
    BATON_RETURN_IF_ERROR(StandBy());
    BATON_RETURN_IF_ERROR(standby_->Signal(SIGKILL));
    return owner_->Kill();
  }
  int VersionAfterKillAll() const override { return owner_->version(); }
  absl::Status OnKillAll() override {
    BATON_RETURN_IF_ERROR(cluster_->WaitUntilGone(owner_->id()));
    BATON_RETURN_IF_ERROR(cluster_->WaitUntilGone(standby_->id()));
    return Regroup();
  }

  std::string ProgramNamed(const std::string& name) const override { return name + ".so"; }

  absl::Status OnUpgrade(uint64_t new_worker_id, int) override {
    BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(new_worker_id));
    return Regroup();
  }
  absl::Status OnBadUpgrade() override { return Regroup(); }

  // By an upgrade, to which all belong that the keeper forks from then on. Others may follow it.
  absl::Status MakeMortal(size_t) override {
    harness::UpgradeOptions upgrade;
    upgrade.program = ProgramNamed("ledger-v1-test-hooks");
    upgrade.arguments = options_.PriorityArguments();
    upgrade.arguments.insert(upgrade.arguments.end(),
                             {"--crash-on-amount", std::to_string(harness::kPoisonAmount)});
    upgrade.plan.set_workers(1);
    upgrade.plan.set_watch_window_ms(kWatchMs);
    BATON_ASSIGN_OR_RETURN(v1::Upgrade status, cluster_->StartUpgrade(std::move(upgrade)));
    BATON_ASSIGN_OR_RETURN(status, cluster_->WaitUntilUpgradeEnds(status.id()));
    if (status.phase() != v1::UPGRADE_PHASE_COMPLETED) {
      return absl::InternalError(
          absl::StrCat("upgrade ", status.id(), " ended otherwise: ", status.ShortDebugString()));
    }
    return OnUpgrade(status.new_worker_ids(0), 1);
  }
  // As many have come as have died. Control lists the dead for a while.
  absl::Status OnMortalsDead() override {
    absl::Status last;
    absl::Status waited = harness::WaitUntil(
        "workers that live",
        [&] {
          last = Regroup();
          return last.ok() && !owner_->HasEnded() && !standby_->HasEnded();
        },
        kFork);
    return last.ok() ? waited : last;
  }

 protected:
  absl::Status AfterHandoff() override { return absl::OkStatus(); }  // the former owner stands by

 private:
  // Until there are as many as there should be, and every shard is owned. Shards that have come to
  // several are handed to the owner of the first.
  absl::Status Regroup() {
    v1::GetServiceResponse service;
    const auto look = [&] {
      absl::StatusOr<v1::GetServiceResponse> now = cluster_->GetService();
      if (!now.ok()) return false;
      service = *std::move(now);
      return std::all_of(service.shards().begin(), service.shards().end(), IsOwned) &&
             std::count_if(service.workers().begin(), service.workers().end(), IsReady) >= kWorkers;
    };
    BATON_RETURN_IF_ERROR(harness::WaitUntil(
        absl::StrCat(kWorkers, " native workers, one of which serves"), look, kFork));
    const uint64_t owner = service.shards(0).owner_worker_id();
    if (!cluster_->OwnsAllShards(owner)) {
      BATON_RETURN_IF_ERROR(cluster_->Handoff(owner));
      BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(owner));
    }
    for (const v1::Worker& worker : service.workers()) {
      if (!IsReady(worker)) continue;
      BATON_ASSIGN_OR_RETURN(Worker opened,
                             Worker::Open(worker.id(), VersionOf(worker), worker.pid()));
      (worker.id() == owner ? owner_ : standby_) = std::make_unique<Worker>(std::move(opened));
    }
    return absl::OkStatus();
  }

  static bool IsOwned(const v1::Shard& shard) { return shard.owner_worker_id() != 0; }
  static bool IsReady(const v1::Worker& worker) { return worker.state() == v1::WORKER_STATE_READY; }
  static int VersionOf(const v1::Worker& worker) {  // "v1"
    return worker.version().empty() ? 0 : std::atoi(worker.version().c_str() + 1);
  }
};

}  // namespace

std::unique_ptr<Workers> MakeNativeWorkers(const DemoOptions& options) {
  return std::make_unique<NativeWorkers>(options);
}

}  // namespace baton::demo
