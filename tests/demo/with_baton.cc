#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status_macros.h"
#include "tests/demo/cpu_meter.h"
#include "tests/demo/measure.h"
#include "tests/demo/scenario.h"
#include "tests/harness/poison_peer.h"
#include "tests/harness/wait_until.h"

namespace baton::demo {
namespace {

// An owner that is silent for so many heartbeats is killed.
constexpr int kHeartbeatMs = 20;
constexpr int kHangTimeoutMs = 250;
// Watched for long enough to see one that is bad, and one that is good no longer than to show it.
constexpr uint32_t kWatchMs = 150;
constexpr uint32_t kBadWatchMs = 20'000;
constexpr uint32_t kFaultAfterMs = 200;
constexpr uint32_t kUnhealthyTimeoutMs = 500;

constexpr uint64_t kTrialRate = 8000;
constexpr uint64_t kMinRate = 2000;
constexpr uint64_t kMaxRate = 20'000;
constexpr size_t kPoisonDeaths = 3;  // the default of poison_deaths

class Act {
 public:
  Act(const DemoOptions& options, ActResult* result) : options_(options), result_(result) {}

  absl::Status Run(const std::string& timeline_path) {
    absl::Status status = Start(timeline_path);
    if (status.ok()) status = DoEvents();
    if (!status.ok() && cluster_ != nullptr) cluster_->DumpLogs();
    status.Update(Finish());
    return status;
  }

 private:
  using Worker = std::unique_ptr<harness::LedgerWorker>;

  absl::Status Start(const std::string& timeline_path) {
    harness::ClusterOptions cluster;
    cluster.binaries = harness::Binaries(options_.binary_directory);
    cluster.fabric = options_.fabric;
    cluster.shards = options_.shards;
    cluster.max_connections = options_.connections + 1;  // and that of the poisoner
    cluster.batond_arguments = options_.PriorityArguments();
    for (const auto& [flag, value] :
         {std::pair("--heartbeat-ms", kHeartbeatMs), {"--hang-timeout-ms", kHangTimeoutMs}}) {
      cluster.batond_arguments.push_back(flag);
      cluster.batond_arguments.push_back(std::to_string(value));
    }
    BATON_ASSIGN_OR_RETURN(cluster_, harness::Cluster::Start(std::move(cluster)));
    BATON_ASSIGN_OR_RETURN(owner_, StartLedger(1));
    BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(owner_->id));
    harness::PeerOptions peer;
    peer.connections = options_.connections;
    peer.rate = options_.rate != 0 ? options_.rate : kTrialRate;
    peer.timeline_path = timeline_path;
    peer.arguments = options_.PriorityArguments();
    result_->start_us = MonotonicNanoseconds() / 1000;
    BATON_ASSIGN_OR_RETURN(peer_, cluster_->StartPeer(peer));
    return SetRate();
  }

  absl::StatusOr<Worker> StartLedger(int version) {
    harness::LedgerOptions ledger;
    ledger.version = version;
    ledger.arguments = options_.PriorityArguments();
    return cluster_->StartLedger(ledger);
  }

  static double CoresUsedInASecond() {
    const CpuTimes before = ReadCpuTimes();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return (ReadCpuTimes() - before).CoresUsed();
  }

  absl::Status SetRate() {
    result_->rate = options_.rate != 0 ? options_.rate : kTrialRate;
    result_->cores_used = CoresUsedInASecond();
    if (options_.rate != 0) return absl::OkStatus();
    const double wanted = 0.5 * UsableCores() / std::max(result_->cores_used, 0.01);
    result_->rate = std::clamp<uint64_t>(
        static_cast<uint64_t>(wanted * static_cast<double>(kTrialRate)), kMinRate, kMaxRate);
    result_->rate = result_->rate / 500 * 500;
    BATON_RETURN_IF_ERROR(peer_->SetRate(result_->rate));
    result_->cores_used = CoresUsedInASecond();
    std::fprintf(stderr, "%llu messages per second use %.2f of %u cores\n",
                 static_cast<unsigned long long>(result_->rate), result_->cores_used,
                 UsableCores());
    return absl::OkStatus();
  }

  absl::Status DoEvents() {
    std::fprintf(stderr, "planned handoffs, from v1 to v2 and back:\n");
    for (uint32_t i = 0; i < options_.handoffs; ++i) BATON_RETURN_IF_ERROR(Handoff());
    BATON_RETURN_IF_ERROR(DoUpgrades());
    std::fprintf(stderr, "the owner killed, with a hot standby:\n");
    BATON_RETURN_IF_ERROR(StartStandby());
    for (uint32_t i = 0; i < options_.crashes; ++i) BATON_RETURN_IF_ERROR(CrashWithStandby());
    std::fprintf(stderr, "the owner stopped, with a hot standby:\n");
    for (uint32_t i = 0; i < options_.hangs; ++i) BATON_RETURN_IF_ERROR(HangWithStandby());
    std::fprintf(stderr, "the owner killed, without a standby:\n");
    BATON_RETURN_IF_ERROR(Retire(standby_));
    for (uint32_t i = 0; i < options_.cold_crashes; ++i) BATON_RETURN_IF_ERROR(CrashAlone());
    std::fprintf(stderr, "control killed:\n");
    for (uint32_t i = 0; i < options_.control_kills; ++i) BATON_RETURN_IF_ERROR(KillControl());
    std::fprintf(stderr, "messages of which workers die:\n");
    for (uint32_t i = 0; i < options_.poisons; ++i) BATON_RETURN_IF_ERROR(Poison(i));
    LetTrafficRun();
    BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse service, cluster_->GetService());
    result_->handoff_inside = Inside(service.service().handoff_blackout());
    result_->failover_inside = Inside(service.service().failover_blackout());
    return absl::OkStatus();
  }

  static InsideBlackout Inside(const v1::BlackoutSummary& summary) {
    return {summary.p50_us(), summary.p99_us(), summary.max_us()};
  }

  Expectation AnsweredBy(int version) const {
    return {.connections = options_.connections, .version = version, .disconnects = false};
  }

  // Of the other version than the owner's, so that the replies show who made them.
  absl::StatusOr<Worker> StartOther() { return StartLedger(3 - owner_->version); }

  absl::Status StartStandby() {
    BATON_ASSIGN_OR_RETURN(standby_, StartOther());
    return absl::OkStatus();
  }

  absl::Status Retire(Worker& worker) {
    BATON_RETURN_IF_ERROR(worker->process->Terminate(std::chrono::seconds(10)));
    BATON_RETURN_IF_ERROR(cluster_->WaitUntilGone(worker->id));
    worker.reset();
    return absl::OkStatus();
  }

  absl::Status Handoff() {
    BATON_RETURN_IF_ERROR(StartStandby());
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kHandoff, AnsweredBy(standby_->version),
        [&] { return cluster_->Handoff(standby_->id); }, &result_->events));
    BATON_RETURN_IF_ERROR(Judge(cluster_->WaitUntilOwner(standby_->id)));
    std::swap(owner_, standby_);
    return Retire(standby_);
  }

  absl::Status CrashWithStandby() {
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kCrashHot, AnsweredBy(standby_->version),
        [&] { return owner_->process->Kill(); }, &result_->events));
    BATON_RETURN_IF_ERROR(Judge(cluster_->WaitUntilOwner(standby_->id)));
    BATON_RETURN_IF_ERROR(Judge(cluster_->WaitUntilGone(owner_->id)));
    std::swap(owner_, standby_);
    return Judge(StartStandby());
  }

  absl::Status HangWithStandby() {
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kHang, AnsweredBy(standby_->version),
        [&]() -> absl::Status {
          BATON_RETURN_IF_ERROR(owner_->process->Signal(SIGSTOP));
          // The keeper kills it.
          return owner_->process->WaitEnd(std::chrono::seconds(10)).status();
        },
        &result_->events));
    BATON_RETURN_IF_ERROR(Judge(cluster_->WaitUntilOwner(standby_->id)));
    BATON_RETURN_IF_ERROR(Judge(cluster_->WaitUntilGone(owner_->id)));
    std::swap(owner_, standby_);
    return Judge(StartStandby());
  }

  absl::Status DoUpgrades() {
    if (options_.upgrades + options_.bad_upgrades == 0) return absl::OkStatus();
    std::fprintf(stderr, "upgrades, from one version to the other:\n");
    for (uint32_t i = 0; i < options_.upgrades; ++i) BATON_RETURN_IF_ERROR(Upgrade());
    std::fprintf(stderr, "upgrades to a program that crashes, is never healthy, or hangs:\n");
    for (uint32_t i = 0; i < options_.bad_upgrades; ++i) {
      BATON_RETURN_IF_ERROR(BadUpgrade(kFaults[i % std::size(kFaults)]));
    }
    return TakeOver();
  }

  // To the other version, in the owner's place: it ends.
  absl::Status Upgrade() {
    LetTrafficRun();
    harness::UpgradeOptions upgrade;
    const int version = 3 - owner_->version;
    upgrade.program = absl::StrCat("ledger-v", version);
    upgrade.plan.set_watch_window_ms(kWatchMs);
    v1::Upgrade status;
    Event start{EventKind::kUpgradeStart, MonotonicNanoseconds() / 1000, 0, ""};
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kUpgrade, AnsweredBy(version),
        [&]() -> absl::Status {
          BATON_ASSIGN_OR_RETURN(status, cluster_->StartUpgrade(upgrade));
          BATON_ASSIGN_OR_RETURN(status, WaitUntilServed(status.id(), &start.blackout_us));
          return absl::OkStatus();
        },
        &result_->events));
    BATON_RETURN_IF_ERROR(Judge(WaitForPhase(status.id(), v1::UPGRADE_PHASE_COMPLETED)));
    owner_ = std::make_unique<harness::LedgerWorker>();  // a child of the keeper now
    owner_->id = status.new_worker_ids(0);
    owner_->version = version;
    BATON_RETURN_IF_ERROR(Judge(cluster_->WaitUntilOwner(owner_->id)));
    result_->events.push_back(start);
    return absl::OkStatus();
  }

  // Until the shards have moved. What the peer sees is measured anew from the last look before
  // that; the longest silence up to there is that of the program's start beside the one that
  // serves.
  absl::StatusOr<v1::Upgrade> WaitUntilServed(uint64_t id, double* start_us) {
    absl::Status marked;
    auto upgrade = cluster_->WaitForUpgrade(id, "the handover", [&](const v1::Upgrade& now) {
      if (now.phase() != v1::UPGRADE_PHASE_STARTING) {
        return now.phase() >= v1::UPGRADE_PHASE_WATCHING;
      }
      const absl::StatusOr<harness::PeerWindow> window = peer_->Mark("start");
      marked.Update(window.status());
      if (window.ok()) *start_us = std::max(*start_us, window->max_silence_us);
      return false;
    });
    BATON_RETURN_IF_ERROR(marked);
    return upgrade;
  }

  struct Fault {
    const char* kind;
    v1::UpgradePhase end;
  };
  static constexpr Fault kFaults[] = {{"crash", v1::UPGRADE_PHASE_ROLLED_BACK},
                                      {"unhealthy", v1::UPGRADE_PHASE_FAILED},
                                      {"hang", v1::UPGRADE_PHASE_ROLLED_BACK}};

  absl::Status BadUpgrade(const Fault& fault) {
    LetTrafficRun();
    harness::UpgradeOptions upgrade;
    upgrade.program = "ledger-faulty";
    upgrade.arguments = options_.PriorityArguments();
    upgrade.arguments.insert(upgrade.arguments.end(), {"--fault", fault.kind, "--fault-after-ms",
                                                       std::to_string(kFaultAfterMs)});
    upgrade.plan.set_watch_window_ms(kBadWatchMs);
    if (fault.end == v1::UPGRADE_PHASE_FAILED) {
      upgrade.plan.set_ready_timeout_ms(kUnhealthyTimeoutMs);
    }
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kBadUpgrade, AnsweredBy(owner_->version),
        [&]() -> absl::Status {
          BATON_ASSIGN_OR_RETURN(const v1::Upgrade status, cluster_->StartUpgrade(upgrade));
          return WaitForPhase(status.id(), fault.end);
        },
        &result_->events));
    return Judge(cluster_->WaitUntilOwner(owner_->id));
  }

  absl::Status WaitForPhase(uint64_t id, v1::UpgradePhase phase) {
    BATON_ASSIGN_OR_RETURN(const v1::Upgrade upgrade, cluster_->WaitUntilUpgradeEnds(id));
    if (upgrade.phase() == phase) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("upgrade ", id, " ended otherwise: ", upgrade.ShortDebugString()));
  }

  // From the worker that the last upgrade has left, so that the owner is ours to kill.
  absl::Status TakeOver() {
    if (owner_->process != nullptr) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(StartStandby());
    BATON_RETURN_IF_ERROR(cluster_->Handoff(standby_->id));
    BATON_RETURN_IF_ERROR(cluster_->operators().KillWorker("ledger", owner_->id).status());
    BATON_RETURN_IF_ERROR(cluster_->WaitUntilGone(owner_->id));
    owner_ = std::move(standby_);
    return cluster_->WaitUntilOwner(owner_->id);
  }

  absl::Status CrashAlone() {
    LetTrafficRun();
    const int version = 3 - owner_->version;
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kCrashCold, AnsweredBy(version),
        [&]() -> absl::Status {
          BATON_RETURN_IF_ERROR(owner_->process->Kill());
          BATON_ASSIGN_OR_RETURN(owner_, StartLedger(version));
          return absl::OkStatus();
        },
        &result_->events));
    return Judge(cluster_->WaitUntilOwner(owner_->id));
  }

  absl::Status KillControl() {
    BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse before, cluster_->operators().GetStatus());
    const FileDescriptor control(
        static_cast<int>(syscall(SYS_pidfd_open, before.control_pid(), 0)));
    if (!control) return ErrnoStatus(errno, "cannot open control's pidfd");
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kControlKill, AnsweredBy(owner_->version),
        [&]() -> absl::Status {
          if (syscall(SYS_pidfd_send_signal, control.get(), SIGKILL, nullptr, 0) != 0) {
            return ErrnoStatus(errno, "cannot kill control");
          }
          return harness::WaitUntil(
              "control to be started again",
              [&] {
                const auto status = cluster_->operators().GetStatus();
                return status.ok() && status->control_pid() != before.control_pid();
              },
              std::chrono::seconds(20));
        },
        &result_->events));
    return Judge(cluster_->WaitUntilOwner(owner_->id));
  }

  // Three workers die of a message that another peer sends. With it its connection is gone, and
  // the fourth, which has the same defect, serves on.
  absl::Status Poison(uint32_t number) {
    std::vector<Worker> others(kPoisonDeaths);
    for (Worker& worker : others) {
      BATON_ASSIGN_OR_RETURN(worker, StartMortal());
    }
    Worker first;
    BATON_ASSIGN_OR_RETURN(first, StartMortal());
    BATON_RETURN_IF_ERROR(cluster_->Handoff(first->id));
    BATON_RETURN_IF_ERROR(Retire(owner_));
    others.push_back(std::move(first));
    harness::PoisonPeer poisoner(uint64_t{1} << 62 | number, options_.fabric);
    BATON_RETURN_IF_ERROR(poisoner.Connect(cluster_->port()));
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kPoison, AnsweredBy(0),
        [&]() -> absl::Status {
          BATON_RETURN_IF_ERROR(poisoner.Send({{1, harness::kPoisonAmount, 2}}));
          return poisoner.WaitDisconnected();
        },
        &result_->events));
    // The locks of the dead tell of them before their processes are gone.
    BATON_RETURN_IF_ERROR(Judge(harness::WaitUntil("all workers but one to have died", [&] {
      std::erase_if(others, [](const Worker& worker) { return worker->process->HasEnded(); });
      return others.size() <= 1;
    })));
    if (others.empty()) return Judge(absl::InternalError("no worker is left"));
    owner_ = std::move(others.front());
    return Judge(cluster_->WaitUntilOwner(owner_->id));
  }

  absl::StatusOr<Worker> StartMortal() {
    harness::LedgerOptions ledger;
    ledger.program = "ledger-v1-test-hooks";
    ledger.arguments = options_.PriorityArguments();
    ledger.arguments.insert(ledger.arguments.end(),
                            {"--crash-on-amount", std::to_string(harness::kPoisonAmount)});
    return cluster_->StartLedger(ledger);
  }

  // What has to follow the last event belongs to it.
  absl::Status Judge(absl::Status status) {
    std::string& problem = result_->events.back().problem;
    if (!status.ok() && problem.empty()) problem = std::string(status.message());
    return status;
  }

  absl::Status Finish() {
    if (peer_ == nullptr) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(result_->peer, peer_->Stop());
    result_->peer_finished = true;
    for (Worker* worker : {&owner_, &standby_}) {
      if (*worker == nullptr || (*worker)->process == nullptr) continue;
      if ((*worker)->process->HasEnded()) continue;
      BATON_RETURN_IF_ERROR((*worker)->process->Terminate(std::chrono::seconds(10)));
    }
    return cluster_->Stop();
  }

  const DemoOptions& options_;
  ActResult* const result_;
  std::unique_ptr<harness::Cluster> cluster_;  // first: the others are its children's neighbours
  Worker owner_;
  Worker standby_;
  std::unique_ptr<harness::PeerProcess> peer_;
};

}  // namespace

ActResult RunWithBaton(const DemoOptions& options, const std::string& timeline_path) {
  ActResult result;
  const CpuTimes before = ReadCpuTimes();
  result.status = Act(options, &result).Run(timeline_path);
  result.cores_of_others = (ReadCpuTimes() - before).CoresUsedByOthers();
  return result;
}

}  // namespace baton::demo
