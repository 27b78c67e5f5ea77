#include "tests/bench/soak.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "tests/bench/checked_stop.h"
#include "tests/harness/quantile.h"
#include "tests/harness/wait_until.h"

namespace baton::bench {
namespace {

constexpr uint32_t kShards = 2;
// Room for those that end while others are made already.
constexpr uint32_t kMaxConnections = 128;
constexpr uint32_t kSteadyConnections = 8, kChurnedConnections = 8;
constexpr uint64_t kSteadyRate = 500, kChurnedRate = 2000;
constexpr uint32_t kWatchMs = 50;
constexpr double kSamplesPerSoak = 200;
constexpr size_t kLeastSamples = 10;
// Events of each service that control keeps for operators. They are bounded and come to stay.
constexpr uint32_t kKeptEvents = 4096;
// Connections of a peer each of which is two events at least: it is made, and it ends.
constexpr uint32_t kWarmConnections = 48;

double SecondsSince(uint64_t begin) {
  return static_cast<double>(MonotonicNanoseconds() - begin) * 1e-9;
}

int OtherThan(int version) { return 3 - version; }

}  // namespace

absl::StatusOr<SoakResult> Soak::Run() {
  absl::Status status = Start();
  if (status.ok()) status = Warm();
  if (status.ok()) status = Cycles();
  if (status.ok()) status = Finish(*peer_);
  if (status.ok()) status = cluster_->Stop();
  if (status.ok()) return std::move(result_);
  if (cluster_ != nullptr) cluster_->DumpLogs();
  return status;
}

absl::Status Soak::Start() {
  harness::ClusterOptions options;
  options.binaries = binaries_;
  options.fabric = {"soft", "127.0.0.1"};
  options.shards = kShards;
  options.max_connections = kMaxConnections;
  BATON_ASSIGN_OR_RETURN(cluster_, harness::Cluster::Start(std::move(options)));
  BATON_ASSIGN_OR_RETURN(first_, cluster_->StartLedger(version_));
  owner_ = first_->id;
  harness::PeerOptions peer;
  peer.connections = kSteadyConnections;
  peer.rate = kSteadyRate;
  BATON_ASSIGN_OR_RETURN(peer_, cluster_->StartPeer(peer));
  return peer_->Settle();
}

// What is bounded has reached its bound before anything is measured.
absl::Status Soak::Warm() {
  for (uint32_t events = 0; events < kKeptEvents; events += 2 * kWarmConnections) {
    BATON_RETURN_IF_ERROR(Churn(kWarmConnections));
  }
  return absl::OkStatus();
}

absl::Status Soak::Cycles() {
  began_ = MonotonicNanoseconds();
  do {
    BATON_RETURN_IF_ERROR(Churn(kChurnedConnections));
    BATON_RETURN_IF_ERROR(MoveAndKill());
    BATON_RETURN_IF_ERROR(Churn(kChurnedConnections));
    BATON_RETURN_IF_ERROR(Upgrade());
    BATON_RETURN_IF_ERROR(peer_->Settle());
    BATON_RETURN_IF_ERROR(Sample());
    ++result_.cycles;
  } while (SecondsSince(began_) < seconds_ || result_.samples.size() < kLeastSamples);
  return absl::OkStatus();
}

// At the same point of a cycle each time, when nothing is under way.
absl::Status Soak::Sample() {
  const double now = SecondsSince(began_);
  if (!result_.samples.empty() &&
      now - result_.samples.back().seconds < seconds_ / kSamplesPerSoak) {
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, cluster_->operators().GetStatus());
  const v1::Service& service = status.services(0);
  const pid_t processes[] = {cluster_->batond().pid(), service.driver_pid(), service.keeper_pid(),
                             status.control_pid()};
  SoakSample& sample = result_.samples.emplace_back();
  sample.seconds = now;
  for (size_t i = 0; i < sample.processes.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(sample.processes[i], ReadFootprint(processes[i]));
  }
  return absl::OkStatus();
}

// A peer comes, is answered on every connection, and goes.
absl::Status Soak::Churn(uint32_t connections) {
  harness::PeerOptions options;
  options.connections = connections;
  options.rate = kChurnedRate;
  BATON_ASSIGN_OR_RETURN(const auto peer, cluster_->StartPeer(options));
  BATON_RETURN_IF_ERROR(peer->Settle());
  BATON_RETURN_IF_ERROR(Finish(*peer));
  return harness::WaitUntil("the ended connections to be gone", [&] {
    const absl::StatusOr<v1::GetServiceResponse> now = cluster_->GetService();
    return now.ok() && now->service().connection_count() == kSteadyConnections;
  });
}

// To a worker that dies then: the former owner goes on.
absl::Status Soak::MoveAndKill() {
  BATON_ASSIGN_OR_RETURN(const auto worker, cluster_->StartLedger(version_));
  BATON_RETURN_IF_ERROR(cluster_->Handoff(worker->id));
  BATON_RETURN_IF_ERROR(peer_->Settle());
  BATON_RETURN_IF_ERROR(worker->process->Kill());
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(owner_));
  return cluster_->WaitUntilGone(worker->id);
}

// To the other version, in the owner's place: it ends.
absl::Status Soak::Upgrade() {
  harness::UpgradeOptions options;
  options.program = absl::StrCat("ledger-v", OtherThan(version_));
  options.plan.set_workers(1);
  options.plan.set_watch_window_ms(kWatchMs);
  BATON_ASSIGN_OR_RETURN(v1::Upgrade upgrade, cluster_->StartUpgrade(options));
  BATON_ASSIGN_OR_RETURN(upgrade, cluster_->WaitUntilUpgradeEnds(upgrade.id()));
  if (upgrade.phase() != v1::UPGRADE_PHASE_COMPLETED || upgrade.new_worker_ids_size() != 1) {
    return absl::InternalError("an upgrade failed: " + upgrade.ShortDebugString());
  }
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilGone(std::exchange(owner_, upgrade.new_worker_ids(0))));
  version_ = OtherThan(version_);
  first_.reset();
  return cluster_->WaitUntilOwner(owner_);
}

absl::Status Soak::Finish(harness::PeerProcess& peer) {
  BATON_ASSIGN_OR_RETURN(const harness::JsonObject result, StopChecked(peer));
  result_.messages += result.Count("messages");
  return absl::OkStatus();
}

std::optional<double> MedianHeld(const std::vector<SoakSample>& samples, size_t process, Held held,
                                 double from, double to) {
  std::vector<double> values;
  const auto count = static_cast<double>(samples.size());
  const auto end = static_cast<size_t>(to * count);
  for (auto i = static_cast<size_t>(from * count); i < end; ++i) {
    const Footprint& footprint = samples[i].processes[process];
    values.push_back(held == Held::kDescriptors
                         ? footprint.descriptors
                         : static_cast<double>(held == Held::kPrivateBytes
                                                   ? footprint.private_bytes
                                                   : footprint.resident_bytes));
  }
  return Quantile(values, 0.5);
}

}  // namespace baton::bench
