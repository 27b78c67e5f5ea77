// Workers that are programs: the demonstration starts and ends them. Each is of the other version
// than the one before, so that the replies show who made them.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status_macros.h"
#include "tests/demo/workers.h"
#include "tests/harness/poison_peer.h"
#include "tests/harness/wait_until.h"

namespace baton::demo {
namespace {

int OtherThan(int version) { return 3 - version; }

class BrokeredWorkers final : public Workers {
 public:
  explicit BrokeredWorkers(const DemoOptions& options) : Workers(options) {}

  absl::Status Configure(harness::ClusterOptions*) const override { return absl::OkStatus(); }

  absl::Status Start(harness::Cluster* cluster) override {
    cluster_ = cluster;
    BATON_ASSIGN_OR_RETURN(owner_, StartLedger(1));
    return cluster_->WaitUntilOwner(owner_->id());
  }

  absl::Status Finish() override {
    for (const auto& worker : {std::cref(owner_), std::cref(standby_)}) {
      const Worker* const one = worker.get().get();
      if (one == nullptr || one->child() == nullptr || one->child()->HasEnded()) continue;
      BATON_RETURN_IF_ERROR(one->child()->Terminate(std::chrono::seconds(10)));
    }
    return absl::OkStatus();
  }

  absl::Status StandBy() override {
    if (standby_ != nullptr) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(standby_, StartLedger(OtherThan(owner_->version())));
    return absl::OkStatus();
  }

  absl::Status DismissStandby() override {
    return standby_ == nullptr ? absl::OkStatus() : Retire(standby_);
  }

  absl::Status KillAll() override {
    const int version = VersionAfterKillAll();
    BATON_RETURN_IF_ERROR(owner_->Kill());
    BATON_ASSIGN_OR_RETURN(owner_, StartLedger(version));
    return absl::OkStatus();
  }
  int VersionAfterKillAll() const override { return OtherThan(owner_->version()); }
  absl::Status OnKillAll() override { return cluster_->WaitUntilOwner(owner_->id()); }

  std::string ProgramNamed(const std::string& name) const override { return name; }

  // In the owner's place, which ends: a child of the keeper.
  absl::Status OnUpgrade(uint64_t new_worker_id, int version) override {
    BATON_ASSIGN_OR_RETURN(Worker worker, Find(new_worker_id, version));
    owner_ = std::make_unique<Worker>(std::move(worker));
    return cluster_->WaitUntilOwner(owner_->id());
  }
  absl::Status OnBadUpgrade() override { return cluster_->WaitUntilOwner(owner_->id()); }

  absl::Status MakeMortal(size_t others) override {
    BATON_RETURN_IF_ERROR(DismissStandby());
    for (size_t i = 0; i < others; ++i) {
      BATON_ASSIGN_OR_RETURN(mortals_.emplace_back(), StartMortal());
    }
    BATON_ASSIGN_OR_RETURN(standby_, StartMortal());
    BATON_RETURN_IF_ERROR(cluster_->Handoff(standby_->id()));
    BATON_RETURN_IF_ERROR(OnHandoff());
    mortals_.push_back(std::move(owner_));
    return absl::OkStatus();
  }

  // The locks of the dead tell of them before their processes are gone.
  absl::Status OnMortalsDead() override {
    BATON_RETURN_IF_ERROR(harness::WaitUntil("all workers but one to have died", [&] {
      std::erase_if(mortals_, [](const auto& worker) { return worker->HasEnded(); });
      return mortals_.size() <= 1;
    }));
    if (mortals_.empty()) return absl::InternalError("no worker is left");
    owner_ = std::move(mortals_.front());
    mortals_.clear();
    return cluster_->WaitUntilOwner(owner_->id());
  }

 protected:
  absl::Status AfterHandoff() override { return Retire(standby_); }

 private:
  absl::StatusOr<std::unique_ptr<Worker>> StartLedger(const harness::LedgerOptions& options) {
    BATON_ASSIGN_OR_RETURN(auto started, cluster_->StartLedger(options));
    BATON_ASSIGN_OR_RETURN(Worker worker, Worker::Own(std::move(started)));
    return std::make_unique<Worker>(std::move(worker));
  }
  absl::StatusOr<std::unique_ptr<Worker>> StartLedger(int version) {
    harness::LedgerOptions ledger;
    ledger.version = version;
    ledger.arguments = options_.PriorityArguments();
    return StartLedger(ledger);
  }
  absl::StatusOr<std::unique_ptr<Worker>> StartMortal() {
    harness::LedgerOptions ledger;
    ledger.program = "ledger-v1-test-hooks";
    ledger.arguments = options_.PriorityArguments();
    ledger.arguments.insert(ledger.arguments.end(),
                            {"--crash-on-amount", std::to_string(harness::kPoisonAmount)});
    return StartLedger(ledger);
  }

  absl::Status Retire(std::unique_ptr<Worker>& worker) {
    if (worker->child() != nullptr) {
      BATON_RETURN_IF_ERROR(worker->child()->Terminate(std::chrono::seconds(10)));
    } else {
      BATON_RETURN_IF_ERROR(cluster_->operators().StopWorker("ledger", worker->id()).status());
    }
    BATON_RETURN_IF_ERROR(cluster_->WaitUntilGone(worker->id()));
    worker.reset();
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<Worker>> mortals_;
};

}  // namespace

std::unique_ptr<Workers> MakeBrokeredWorkers(const DemoOptions& options) {
  return std::make_unique<BrokeredWorkers>(options);
}

}  // namespace baton::demo
