#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "tests/demo/cpu_meter.h"
#include "tests/demo/measure.h"
#include "tests/demo/scenario.h"
#include "tests/demo/workers.h"
#include "tests/harness/poison_peer.h"
#include "tests/harness/wait_until.h"

namespace baton::demo {
namespace {

// An owner that is silent for so many heartbeats is killed. In an emulated machine one that is well
// may get no processor for so long.
constexpr int kHeartbeatMs = 20;
const int kHangTimeoutMs = 250 * harness::Slowness();
// Watched for long enough to see one that is bad, and one that is good no longer than to show it.
constexpr uint32_t kWatchMs = 150;
constexpr uint32_t kBadWatchMs = 20'000;
constexpr uint32_t kFaultAfterMs = 200;
constexpr uint32_t kUnhealthyTimeoutMs = 500;

constexpr uint64_t kTrialRate = 4000;
constexpr uint64_t kMinRate = 500;
constexpr uint64_t kMaxRate = 20'000;
constexpr int kRateTrials = 4;
constexpr size_t kPoisonDeaths = 3;  // the default of poison_deaths

std::unique_ptr<Workers> MakeWorkers(const DemoOptions& options) {
  return options.mode == Mode::kNative ? MakeNativeWorkers(options) : MakeBrokeredWorkers(options);
}

class Act {
 public:
  Act(const DemoOptions& options, ActResult* result, Progress* progress)
      : options_(options), result_(result), progress_(progress), workers_(MakeWorkers(options)) {}

  absl::Status Run(const std::string& timeline_path) {
    absl::Status status = Start(timeline_path);
    if (status.ok()) status = DoEvents();
    if (!status.ok() && cluster_ != nullptr) {
      progress_->Yield();
      cluster_->DumpLogs();
    }
    status.Update(Finish());
    return status;
  }

 private:
  struct Events {
    uint32_t count;
    absl::Status (Act::*show)(uint32_t number);
  };

  absl::Status Start(const std::string& timeline_path) {
    harness::ClusterOptions cluster;
    cluster.yield_microseconds = 0;
    cluster.binaries = harness::Binaries(options_.binary_directory);
    cluster.fabric = options_.fabric;
    cluster.shards = options_.shards;
    cluster.max_connections = options_.connections + 1;  // and that of the poisoner
    cluster.batond_arguments = options_.PriorityArguments();
    for (const auto& [flag, value] :
         {std::pair("--heartbeat-ms", kHeartbeatMs), {"--hang-timeout-ms", kHangTimeoutMs}}) {
      cluster.batond_arguments.emplace_back(flag);
      cluster.batond_arguments.push_back(std::to_string(value));
    }
    BATON_RETURN_IF_ERROR(workers_->Configure(&cluster));
    BATON_ASSIGN_OR_RETURN(cluster_, harness::Cluster::Start(std::move(cluster)));
    BATON_RETURN_IF_ERROR(workers_->Start(cluster_.get()));
    harness::PeerOptions peer;
    peer.connections = options_.connections;
    peer.rate = options_.rate != 0 ? options_.rate : kTrialRate;
    peer.timeline_path = timeline_path;
    peer.arguments = options_.PriorityArguments();
    result_->start_us = MonotonicNanoseconds() / 1000;
    BATON_ASSIGN_OR_RETURN(peer_, cluster_->StartPeer(peer));
    return SetRate();
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
    // A message costs more the fewer there are, because processes sleep and wake in between. So one
    // trial is not enough.
    for (int trial = 1; trial < kRateTrials; ++trial) {
      const double wanted = 0.5 * UsableCores() / std::max(result_->cores_used, 0.01);
      const auto rate = static_cast<uint64_t>(wanted * static_cast<double>(result_->rate));
      const uint64_t next = std::clamp<uint64_t>(rate / 100 * 100, kMinRate, kMaxRate);
      if (std::max(next, result_->rate) - std::min(next, result_->rate) <= result_->rate / 8) break;
      result_->rate = next;
      BATON_RETURN_IF_ERROR(peer_->SetRate(result_->rate));
      result_->cores_used = CoresUsedInASecond();
    }
    progress_->Note(absl::StrFormat("%d messages per second use %.2f of %u cores", result_->rate,
                                    result_->cores_used, UsableCores()));
    return absl::OkStatus();
  }

  absl::Status DoEvents() {
    const Events all[] = {
        {options_.handoffs, &Act::Handoff},
        {options_.upgrades, &Act::Upgrade},
        {options_.bad_upgrades, &Act::BadUpgrade},
        {options_.crashes, &Act::CrashWithStandby},
        {options_.hangs, &Act::HangWithStandby},
        {options_.cold_crashes, &Act::CrashAlone},
        {options_.HasBrokers() ? options_.driver_kills : 0, &Act::KillDriver},
        {options_.control_kills, &Act::KillControl},
        {options_.keeper_kills, &Act::KillKeeper},
        {options_.baton_upgrades, &Act::UpgradeBaton},
        {options_.batond_kills, &Act::KillBatond},
        {options_.poisons, &Act::Poison},
    };
    for (const Events& events : all) BATON_RETURN_IF_ERROR(Do(events));
    LetTrafficRun();
    BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse service, cluster_->GetService());
    result_->handoff_inside = Inside(service.service().handoff_blackout());
    result_->failover_inside = Inside(service.service().failover_blackout());
    return absl::OkStatus();
  }

  absl::Status Do(const Events& events) {
    for (uint32_t i = 0; i < events.count; ++i) BATON_RETURN_IF_ERROR((this->*events.show)(i));
    return absl::OkStatus();
  }

  static InsideBlackout Inside(const v1::BlackoutSummary& summary) {
    return {summary.p50_us(), summary.p99_us(), summary.max_us()};
  }

  Expectation AnsweredBy(int version) const {
    return {.connections = options_.connections, .version = version, .disconnects = false};
  }

  absl::Status Handoff(uint32_t) {
    BATON_RETURN_IF_ERROR(workers_->StandBy());
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kHandoff, AnsweredBy(workers_->standby().version()),
        [&] { return cluster_->Handoff(workers_->standby().id()); }, progress_, &result_->events));
    return Judge(workers_->OnHandoff());
  }

  absl::Status CrashWithStandby(uint32_t) {
    BATON_RETURN_IF_ERROR(workers_->StandBy());
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kCrashHot, AnsweredBy(workers_->standby().version()),
        [&] { return workers_->owner().Kill(); }, progress_, &result_->events));
    return Judge(workers_->OnDeath());
  }

  absl::Status HangWithStandby(uint32_t) {
    BATON_RETURN_IF_ERROR(workers_->StandBy());
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kHang, AnsweredBy(workers_->standby().version()),
        [&]() -> absl::Status {
          BATON_RETURN_IF_ERROR(workers_->owner().Signal(SIGSTOP));
          return workers_->owner().WaitEnd();  // the keeper kills it
        },
        progress_, &result_->events));
    return Judge(workers_->OnDeath());
  }

  // To the other version, in the owner's place: it ends.
  absl::Status Upgrade(uint32_t) {
    LetTrafficRun();
    harness::UpgradeOptions upgrade;
    const int version = 3 - workers_->owner().version();
    upgrade.program = workers_->ProgramNamed(absl::StrCat("ledger-v", version));
    upgrade.plan.set_workers(1);
    upgrade.plan.set_watch_window_ms(kWatchMs);
    v1::Upgrade status;
    Event start{EventKind::kUpgradeStart, MonotonicNanoseconds() / 1000, 0, ""};
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kUpgrade, AnsweredBy(version),
        [&]() -> absl::Status {
          BATON_ASSIGN_OR_RETURN(status, cluster_->StartUpgrade(upgrade));
          BATON_ASSIGN_OR_RETURN(status, WaitUntilServed(status.id(), &start.silence_us));
          return absl::OkStatus();
        },
        progress_, &result_->events));
    BATON_RETURN_IF_ERROR(Judge(WaitForPhase(status.id(), v1::UPGRADE_PHASE_COMPLETED)));
    BATON_RETURN_IF_ERROR(Judge(workers_->OnUpgrade(status.new_worker_ids(0), version)));
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

  absl::Status BadUpgrade(uint32_t number) {
    const Fault& fault = kFaults[number % std::size(kFaults)];
    LetTrafficRun();
    harness::UpgradeOptions upgrade;
    upgrade.program = workers_->ProgramNamed("ledger-faulty");
    upgrade.plan.set_workers(1);
    upgrade.arguments = options_.PriorityArguments();
    upgrade.arguments.insert(upgrade.arguments.end(), {"--fault", fault.kind, "--fault-after-ms",
                                                       std::to_string(kFaultAfterMs)});
    upgrade.plan.set_watch_window_ms(kBadWatchMs);
    if (fault.end == v1::UPGRADE_PHASE_FAILED) {
      upgrade.plan.set_ready_timeout_ms(kUnhealthyTimeoutMs);
    }
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kBadUpgrade, AnsweredBy(workers_->owner().version()),
        [&]() -> absl::Status {
          BATON_ASSIGN_OR_RETURN(const v1::Upgrade status, cluster_->StartUpgrade(upgrade));
          return WaitForPhase(status.id(), fault.end);
        },
        progress_, &result_->events));
    return Judge(workers_->OnBadUpgrade());
  }

  absl::Status WaitForPhase(uint64_t id, v1::UpgradePhase phase) {
    BATON_ASSIGN_OR_RETURN(const v1::Upgrade upgrade, cluster_->WaitUntilUpgradeEnds(id));
    if (upgrade.phase() == phase) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("upgrade ", id, " ended otherwise: ", upgrade.ShortDebugString()));
  }

  absl::Status CrashAlone(uint32_t) {
    BATON_RETURN_IF_ERROR(workers_->DismissStandby());
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kCrashCold, AnsweredBy(workers_->VersionAfterKillAll()),
        [&] { return workers_->KillAll(); }, progress_, &result_->events));
    return Judge(workers_->OnKillAll());
  }

  // Ends when the next broker drives. Its twin is waited for before the next kill.
  absl::Status KillDriver(uint32_t) {
    BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse before, cluster_->AwaitBrokers());
    const pid_t former = before.services(0).broker_pid();
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kDriverKill, AnsweredBy(workers_->owner().version()),
        [&]() -> absl::Status {
          if (kill(former, SIGKILL) != 0) return ErrnoStatus(errno, "cannot kill the broker");
          return harness::WaitUntil("the next broker", [&] {
            const auto status = cluster_->operators().GetStatus();
            if (!status.ok() || status->services_size() != 1) return false;
            const pid_t broker = status->services(0).broker_pid();
            return broker != 0 && broker != former;
          });
        },
        progress_, &result_->events));
    return Judge(cluster_->WaitUntilOwner(workers_->owner().id()));
  }

  absl::Status KillControl(uint32_t) {
    BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse before, cluster_->operators().GetStatus());
    const FileDescriptor control(
        static_cast<int>(syscall(SYS_pidfd_open, before.control_pid(), 0)));
    if (!control) return ErrnoStatus(errno, "cannot open control's pidfd");
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kControlKill, AnsweredBy(workers_->owner().version()),
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
        progress_, &result_->events));
    return Judge(cluster_->WaitUntilOwner(workers_->owner().id()));
  }

  absl::Status KillKeeper(uint32_t) {
    return EndKeeper(EventKind::kKeeperKill, [](const v1::Service& service) -> absl::Status {
      if (kill(service.keeper_pid(), SIGKILL) == 0) return absl::OkStatus();
      return ErrnoStatus(errno, "cannot kill the keeper");
    });
  }

  // `baton upgrade --baton` does the same. The program in the keeper's place stays.
  absl::Status UpgradeBaton(uint32_t) {
    return EndKeeper(EventKind::kBatonUpgrade, [this](const v1::Service& service) {
      return cluster_->operators().ReplaceKeeper(service.name()).status();
    });
  }

  // Until the next keeper serves operators. The driver is the same.
  absl::Status EndKeeper(EventKind kind,
                         const std::function<absl::Status(const v1::Service&)>& end) {
    BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse before, cluster_->operators().GetStatus());
    const v1::Service& service = before.services(0);
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, kind, AnsweredBy(workers_->owner().version()),
        [&]() -> absl::Status {
          BATON_RETURN_IF_ERROR(end(service));
          return harness::WaitUntil(
              "the next keeper",
              [&] {
                const auto now = cluster_->operators().GetStatus();
                return now.ok() && now->services(0).reachable() &&
                       now->services(0).keeper_pid() != service.keeper_pid() &&
                       now->services(0).driver_pid() == service.driver_pid();
              },
              std::chrono::seconds(20));
        },
        progress_, &result_->events));
    return Judge(cluster_->WaitUntilOwner(workers_->owner().id()));
  }

  // Until the next batond has taken the keeper in, and operators are served again.
  absl::Status KillBatond(uint32_t) {
    BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse before, cluster_->operators().GetStatus());
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kBatondKill, AnsweredBy(workers_->owner().version()),
        [&]() -> absl::Status {
          BATON_RETURN_IF_ERROR(cluster_->KillBatond());
          return cluster_->StartBatondAgain();
        },
        progress_, &result_->events));
    BATON_RETURN_IF_ERROR(Judge(ExpectKeeper(before.services(0).keeper_pid())));
    return Judge(cluster_->WaitUntilOwner(workers_->owner().id()));
  }

  absl::Status ExpectKeeper(int pid) {
    BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse now, cluster_->operators().GetStatus());
    if (now.services_size() == 1 && now.services(0).keeper_pid() == pid) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("the next batond did not take in keeper ", pid, ": ", now.ShortDebugString()));
  }

  // Three workers die of a message that another peer sends. With it its connection is gone, and
  // the fourth, which has the same defect, serves on.
  absl::Status Poison(uint32_t number) {
    BATON_RETURN_IF_ERROR(workers_->MakeMortal(kPoisonDeaths));
    harness::PoisonPeer poisoner(uint64_t{1} << 62 | number, options_.fabric);
    BATON_RETURN_IF_ERROR(poisoner.Connect(cluster_->port()));
    LetTrafficRun();
    BATON_RETURN_IF_ERROR(Measure(
        *peer_, EventKind::kPoison, AnsweredBy(0),
        [&]() -> absl::Status {
          BATON_RETURN_IF_ERROR(poisoner.Send({1, harness::kPoisonAmount, 2}));
          return poisoner.WaitDisconnected();
        },
        progress_, &result_->events));
    return Judge(workers_->OnMortalsDead());
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
    BATON_RETURN_IF_ERROR(workers_->Finish());
    return cluster_->Stop();
  }

  const DemoOptions& options_;
  ActResult* const result_;
  Progress* const progress_;
  std::unique_ptr<harness::Cluster> cluster_;  // first: the others are its children's neighbours
  const std::unique_ptr<Workers> workers_;
  std::unique_ptr<harness::PeerProcess> peer_;
};

}  // namespace

ActResult RunWithBaton(const DemoOptions& options, const std::string& timeline_path,
                       Progress* progress) {
  progress->BeginAct(absl::StrCat("With Baton, ", ModeName(options.mode), " workers"),
                     /*with_baton=*/true, timeline_path);
  ActResult result;
  const CpuTimes before = ReadCpuTimes();
  result.status = Act(options, &result, progress).Run(timeline_path);
  if (result.peer_finished) progress->EndAct(CountersOf(result));
  result.cores_of_others = (ReadCpuTimes() - before).CoresUsedByOthers();
  return result;
}

}  // namespace baton::demo
