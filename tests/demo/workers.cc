#include "tests/demo/workers.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/poison_peer.h"
#include "tests/harness/wait_until.h"

namespace baton::demo {

absl::StatusOr<Worker> Worker::Open(uint64_t id, int version, pid_t pid) {
  Worker worker;
  worker.id_ = id;
  worker.version_ = version;
  worker.pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!worker.pidfd_) {
    return ErrnoStatus(errno, absl::StrCat("cannot open the pidfd of worker ", id));
  }
  return worker;
}

absl::StatusOr<Worker> Worker::Own(std::unique_ptr<harness::LedgerWorker> started) {
  BATON_ASSIGN_OR_RETURN(Worker worker,
                         Open(started->id, started->version, started->process->pid()));
  worker.child_ = std::move(started->process);
  return worker;
}

absl::Status Worker::Signal(int signal) const {
  if (syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("cannot signal worker ", id_));
}

bool Worker::HasEnded() const {
  pollfd event = {pidfd_.get(), POLLIN, 0};
  return poll(&event, 1, 0) > 0;
}

absl::Status Worker::WaitEnd() const {
  return harness::WaitUntil(absl::StrCat("worker ", id_, " to end"), [&] { return HasEnded(); });
}

absl::Status Worker::Kill() const {
  BATON_RETURN_IF_ERROR(Signal(SIGKILL));
  return WaitEnd();
}

absl::Status Workers::OnHandoff() {
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(standby_->id()));
  std::swap(owner_, standby_);
  return AfterHandoff();
}

absl::Status Workers::OnDeath() {
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(standby_->id()));
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilGone(owner_->id()));
  owner_ = std::move(standby_);
  return StandBy();
}

absl::StatusOr<Worker> Workers::Find(uint64_t id, int version) {
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse service, cluster_->GetService());
  for (const v1::Worker& worker : service.workers()) {
    if (worker.id() == id) return Worker::Open(id, version, worker.pid());
  }
  return absl::NotFoundError(absl::StrCat("worker ", id, " is gone"));
}

namespace {

int OtherThan(int version) { return 3 - version; }

// Workers that are programs: the demonstration starts and ends them. Each is of the other version
// than the one before, so that the replies show who made them.
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

constexpr int kWorkers = 2;  // the owner, and one that stands by
// The keeper waits before it forks in the place of one that ended soon after its own start.
constexpr std::chrono::seconds kFork{20};
constexpr uint32_t kWatchMs = 500;

// Workers that the keeper forks: one more whenever one has ended, with the object that serves. The
// demonstration hands the shards to one of them, kills, and waits until there are as many again.
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
  // The keeper has replaced every worker that has died. Control lists the dead for a while, so this
  // waits for an owner and a standby that live.
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

std::unique_ptr<Workers> MakeBrokeredWorkers(const DemoOptions& options) {
  return std::make_unique<BrokeredWorkers>(options);
}

std::unique_ptr<Workers> MakeNativeWorkers(const DemoOptions& options) {
  return std::make_unique<NativeWorkers>(options);
}

}  // namespace baton::demo
