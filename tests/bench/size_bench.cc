// What Baton takes of memory: for a connection, a shard, a service, its processes; and whether that
// stays so under churn. `./run bench size` starts it.
#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/bench/fleet.h"
#include "tests/bench/service_bytes.h"
#include "tests/bench/suite.h"
#include "tests/harness/binaries.h"
#include "tests/harness/cluster.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/quantile.h"
#include "tests/harness/wait_until.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {

inline constexpr std::array kSoaked = {"batond", "driver", "broker", "twin", "keeper", "control"};

struct SoakSample {
  double seconds = 0;  // since the soak began
  std::array<Footprint, kSoaked.size()> processes;
};

struct SoakResult {
  std::vector<SoakSample> samples;
  uint64_t cycles = 0;    // each: a kill, two moves of all shards, an upgrade, two peers
  uint64_t messages = 0;  // checked
};

// A Baton under churn: peers connect and go, shards are handed over, owners are killed, the service
// is upgraded, again and again, under a peer that checks every reply. What its processes hold is to
// stay as it is. Thread-safety: none (ChildProcess).
class Soak {
 public:
  // Connections of so many events come and go before anything is measured.
  Soak(harness::Binaries binaries, double seconds, uint32_t warm_events)
      : binaries_(std::move(binaries)), seconds_(seconds), warm_events_(warm_events) {}

  // For the time that it was given, or a few cycles, if that is longer. kDataLoss: a peer missed
  // something, or was disconnected.
  absl::StatusOr<SoakResult> Run();

 private:
  absl::Status Start();
  absl::Status Warm();
  absl::Status Cycles();
  absl::Status Sample();
  absl::Status Churn(uint32_t connections);
  absl::Status MoveAndKill();
  absl::Status Upgrade();
  absl::Status Finish(harness::PeerProcess& peer);

  const harness::Binaries binaries_;
  const double seconds_;
  const uint32_t warm_events_;
  std::unique_ptr<harness::Cluster> cluster_;
  std::unique_ptr<harness::PeerProcess> peer_;
  std::unique_ptr<harness::LedgerWorker> first_;
  uint64_t owner_ = 0;
  int version_ = 1;  // of the owner
  uint64_t began_ = 0;
  SoakResult result_;
};

// Median over the samples from the share `from` to the share `to` of all; none of none.
enum class Held : uint8_t { kPrivateBytes, kResidentBytes, kDescriptors };
std::optional<double> MedianHeld(const std::vector<SoakSample>& samples, size_t process, Held held,
                                 double from, double to);

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

struct Options {
  SuiteOptions suite;
  std::string binary_directory;
  // More than the events that operators are told of: those are bounded, and are not to be taken for
  // what a connection holds.
  uint32_t connections = 5000;
  double soak_seconds = 60;
  uint32_t warm_events = kKeptEvents;
};

constexpr double kKib = 1024;
// Differences of so many and of twice as many: no file's last page shows in them.
constexpr uint32_t kManyConnections = 1024;
constexpr uint32_t kSoakPoints = 10;

std::string SoakFigure(const char* process, uint32_t point) {
  return absl::StrCat("soak_", process, "_kib_at_", point * 100 / kSoakPoints, "_percent");
}

class Measurement {
 public:
  Measurement(const Options& options, const Suite& suite, Round* round)
      : options_(options),
        connections_(suite.Scaled(options.connections, 16)),
        binaries_(options.binary_directory),
        round_(*round) {}

  absl::Status Measure() {
    BATON_RETURN_IF_ERROR(Layout());
    BATON_RETURN_IF_ERROR(Processes());
    return Churn();
  }

 private:
  void SetParts(const std::string& of, const LayoutBytes& bytes) {
    round_.Set(of + "_metadata_bytes", bytes.metadata, "B");
    round_.Set(of + "_work_request_log_bytes", bytes.work_request_logs, "B");
    round_.Set(of + "_completion_log_bytes", bytes.completion_logs, "B");
    round_.Set(of + "_state_bytes", bytes.state, "B");
  }

  // At the default depth, state sizes and buffers.
  absl::Status Layout() {
    BATON_ASSIGN_OR_RETURN(shape_, DefaultShape());
    const LayoutBytes connection =
        Difference(BytesOf(WithConnections(shape_, 2 * kManyConnections)),
                   BytesOf(WithConnections(shape_, kManyConnections)), kManyConnections);
    const LayoutBytes shard = Difference(BytesOf(WithShards(shape_, 2)), BytesOf(shape_), 1);
    const LayoutBytes service = BytesOf(shape_);
    metadata_of_connection_ = connection.metadata;
    round_.Set("default_queue_depth", shape_.send_queue_depth, "");
    SetParts("layout_connection", connection);
    round_.Set("layout_connection_total_bytes", connection.Total(), "B");
    SetParts("layout_shard", shard);
    round_.Set("layout_shard_total_bytes", shard.Total(), "B");
    SetParts("layout_service", service);
    round_.Set("layout_service_buffer_bytes", service.buffers, "B");
    round_.Set("layout_service_total_bytes", service.Total(), "B");
    BATON_ASSIGN_OR_RETURN(const double files, FileBytes(shape_));
    round_.Set("service_file_bytes", files, "B");
    return absl::OkStatus();
  }

  // Measures the processes of a Baton without connections. What connections take is the
  // difference between two other Batons, one of which has twice as many connections.
  absl::Status Processes() {
    FleetOptions options;
    options.binaries = binaries_;
    options.queue_depth = shape_.send_queue_depth;
    options.connections = 1;
    BATON_RETURN_IF_ERROR(ReadProcesses(options, /*connect=*/false, &empty_));
    options.connections = connections_;
    BATON_RETURN_IF_ERROR(ReadProcesses(options, /*connect=*/true, &half_));
    options.connections = 2 * connections_;
    BATON_RETURN_IF_ERROR(ReadProcesses(options, /*connect=*/true, &full_));
    round_.Set("batond_private_kib", empty_.batond / kKib, "KiB");
    round_.Set("control_private_kib", empty_.control / kKib, "KiB");
    round_.Set("keeper_private_kib", empty_.keeper / kKib, "KiB");
    round_.Set("worker_private_kib", empty_.worker / kKib, "KiB");
    round_.Set("driver_private_kib", empty_.driver / kKib, "KiB");
    round_.Set("driver_resident_kib", empty_.driver_resident / kKib, "KiB");
    round_.Set("driver_resident_with_connections_kib", full_.driver_resident / kKib, "KiB");
    const double driver = (full_.driver - half_.driver) / connections_;
    BATON_ASSIGN_OR_RETURN(const double soft,
                           SoftBytesPerConnection(connections_, shape_.send_queue_depth));
    round_.Set("connections", 2.0 * connections_, "");
    round_.Set("driver_connection_bytes", driver, "B");
    round_.Set("driver_connection_soft_device_bytes", soft, "B");
    round_.Set("worker_connection_bytes", (full_.worker - half_.worker) / connections_, "B");
    round_.Set("control_connection_bytes", (full_.control - half_.control) / connections_, "B");
    round_.Set("connection_metadata_bytes", metadata_of_connection_ + driver - soft, "B");
    round_.Set("one_kib", kKib, "B");
    return absl::OkStatus();
  }

  struct ProcessBytes {
    double batond = 0, control = 0, keeper = 0, driver = 0, worker = 0;  // private
    double driver_resident = 0;
  };
  static absl::Status ReadProcesses(const FleetOptions& options, bool connect,
                                    ProcessBytes* bytes) {
    BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Fleet> fleet, Fleet::Start(options));
    absl::Status status = connect ? fleet->Connect() : absl::OkStatus();
    if (!status.ok()) {
      fleet->DumpLogs();
      return status;
    }
    BATON_ASSIGN_OR_RETURN(const Fleet::Processes processes, fleet->Servers());
    BATON_ASSIGN_OR_RETURN(const Footprint batond, ReadFootprint(processes.batond));
    BATON_ASSIGN_OR_RETURN(const Footprint control, ReadFootprint(processes.control));
    BATON_ASSIGN_OR_RETURN(const Footprint keeper, ReadFootprint(processes.keepers[0]));
    BATON_ASSIGN_OR_RETURN(const Footprint driver, ReadFootprint(processes.drivers[0]));
    BATON_ASSIGN_OR_RETURN(const Footprint worker, ReadFootprint(processes.workers[0]));
    bytes->batond = static_cast<double>(batond.private_bytes);
    bytes->control = static_cast<double>(control.private_bytes);
    bytes->keeper = static_cast<double>(keeper.private_bytes);
    bytes->driver = static_cast<double>(driver.private_bytes);
    bytes->driver_resident = static_cast<double>(driver.resident_bytes);
    bytes->worker = static_cast<double>(worker.private_bytes);
    return absl::OkStatus();
  }

  // What has settled is the second quarter's; what the last one has more is growth.
  absl::Status Churn() {
    BATON_ASSIGN_OR_RETURN(const SoakResult soak,
                           Soak(binaries_, options_.soak_seconds, options_.warm_events).Run());
    round_.Set("soak_seconds", soak.samples.back().seconds, "s");
    round_.Set("soak_cycles", static_cast<double>(soak.cycles), "");
    round_.Set("soak_messages", static_cast<double>(soak.messages), "");
    for (size_t i = 0; i < kSoaked.size(); ++i) {
      const auto median = [&](Held held, double from, double to) {
        return MedianHeld(soak.samples, i, held, from, to);
      };
      const auto kib = [&](Held held, double from, double to) {
        std::optional<double> bytes = median(held, from, to);
        if (bytes.has_value()) *bytes /= kKib;
        return bytes;
      };
      const std::string name = absl::StrCat("soak_", kSoaked[i]);
      for (const auto& [quarter, from] : {std::pair("second", 0.25), {"last", 0.75}}) {
        const double to = from + 0.25;
        round_.Set(absl::StrCat(name, "_", quarter, "_quarter_private_kib"),
                   kib(Held::kPrivateBytes, from, to), "KiB");
        round_.Set(absl::StrCat(name, "_", quarter, "_quarter_resident_kib"),
                   kib(Held::kResidentBytes, from, to), "KiB");
        round_.Set(absl::StrCat(name, "_", quarter, "_quarter_descriptors"),
                   median(Held::kDescriptors, from, to), "");
      }
      for (uint32_t point = 1; point <= kSoakPoints; ++point) {
        round_.Set(SoakFigure(kSoaked[i], point),
                   kib(Held::kPrivateBytes, (point - 1.0) / kSoakPoints,
                       static_cast<double>(point) / kSoakPoints),
                   "KiB");
      }
    }
    return absl::OkStatus();
  }

  const Options& options_;
  const uint32_t connections_;
  const harness::Binaries binaries_;
  Round& round_;
  arena::Shape shape_ = {};
  double metadata_of_connection_ = 0;
  ProcessBytes empty_, half_, full_;
};

constexpr double kFlat = 1.05;

void Compare(Suite* suite) {
  suite->Compare(
      {"connection_metadata_to_one_kib", "connection_metadata_bytes", "one_kib", Better::kLess, 1});
  Plot plot{"soak", "Private memory under churn", "percent of the soak", "KiB", {}};
  for (const char* process : kSoaked) {
    for (const char* held : {"private_kib", "resident_kib", "descriptors"}) {
      suite->Compare({absl::StrCat("soak_", process, "_", held, "_growth"),
                      absl::StrCat("soak_", process, "_last_quarter_", held),
                      absl::StrCat("soak_", process, "_second_quarter_", held), Better::kLess,
                      kFlat});
    }
    Line& line = plot.lines.emplace_back();
    line.title = process;
    for (uint32_t point = 1; point <= kSoakPoints; ++point) {
      line.points.emplace_back(point * 100.0 / kSoakPoints, SoakFigure(process, point));
    }
  }
  suite->Draw(std::move(plot));
}

int Main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "What a connection, a shard and a service of Baton take of memory, and whether its processes "
      "grow while peers come and go and workers are handed over to, killed and upgraded.");
  AddSuiteOptions(flags, &options.suite);
  flags
      .Add("--connections", &options.connections,
           "that idle, and twice as many, times --scale [5000]")
      .Within(1, 30'000);
  flags.Add("--soak-seconds", &options.soak_seconds, "of churn in each round [60]")
      .Within(0.1, 1e6);
  flags.Add("--warm-events", &options.warm_events,
            "of connections before the soak; fewer than control keeps show as growth [4096]");
  flags.Add("--bin", &options.binary_directory, "where the programs are [$BATON_BIN]");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  Suite suite("size", options.suite);
  Compare(&suite);
  return suite.RunToExit(
      [&](Round& round) { return Measurement(options, suite, &round).Measure(); });
}

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
  options.yield_microseconds = 0;
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
  for (uint32_t events = 0; events < warm_events_; events += 2 * kWarmConnections) {
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
  BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, cluster_->AwaitBrokers());
  const v1::Service& service = status.services(0);
  const pid_t processes[] = {cluster_->batond().pid(), service.driver_pid(), service.broker_pid(),
                             service.twin_pid(),       service.keeper_pid(), status.control_pid()};
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
  BATON_ASSIGN_OR_RETURN(const harness::JsonObject result, peer.StopChecked());
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

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
