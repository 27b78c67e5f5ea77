// Many services, workers and connections on one machine, beside a small Baton: whether
// control-plane and data path stay as they were. `./run bench scale` starts it.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/bench/fleet.h"
#include "tests/bench/suite.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/quantile.h"
#include "tests/harness/wait_until.h"
#include "worker/examples/common/flags.h"
#include "worker/worker.h"

namespace baton::bench {
namespace {

struct Options {
  SuiteOptions suite;
  std::string binary_directory;
  uint32_t connections = 10'000;
  uint32_t services = 64;
  uint32_t workers = 256;
  uint32_t calls = 50;
  uint32_t handoffs = 20;
  uint32_t attaches = 5;
  double seconds = 3;  // of each measurement of traffic
  double idle_seconds = 10;
};

double Microseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

// A worker that only attaches has this service.
class NoService final : public Service {
  void OnCompletion(Shard& shard, const Completion& completion) override {
    (void)shard, (void)completion;
  }
};

// One Baton, all of whose figures begin with its name.
class Side {
 public:
  Side(std::string name, const Options& options, Round* round)
      : name_(std::move(name)), options_(options), round_(round) {}

  absl::Status Measure(const FleetOptions& fleet) {
    BATON_RETURN_IF_ERROR(Start(fleet));
    for (const auto measure :
         {&Side::Memory, &Side::Idle, &Side::Lists, &Side::Attaches, &Side::Handoffs,
          &Side::RoundTrips, &Side::Messages, &Side::StillConnected}) {
      const absl::Status status = (this->*measure)();
      if (status.ok()) continue;
      fleet_->DumpLogs();
      return absl::Status(status.code(), absl::StrCat(name_, ": ", status.message()));
    }
    return absl::OkStatus();
  }

 private:
  void Set(const std::string& figure, std::optional<double> value, const char* unit) {
    round_->Set(absl::StrCat(name_, "_", figure), value, unit);
  }
  void SetTimes(const std::string& figure, std::vector<double> times, const char* unit) {
    Set(absl::StrCat(figure, "_p50_", unit), Quantile(times, 0.5), unit);
    Set(absl::StrCat(figure, "_p99_", unit), Quantile(times, 0.99), unit);
  }

  absl::Status Start(const FleetOptions& options) {
    const uint64_t begin = MonotonicNanoseconds();
    BATON_ASSIGN_OR_RETURN(fleet_, Fleet::Start(options));
    const uint64_t up = MonotonicNanoseconds();
    absl::Status status = fleet_->Connect();
    if (!status.ok()) {
      fleet_->DumpLogs();
      return status;
    }
    Set("start_seconds", Microseconds(up - begin) * 1e-6, "s");
    Set("connect_seconds", Microseconds(MonotonicNanoseconds() - up) * 1e-6, "s");
    return absl::OkStatus();
  }

  absl::Status Memory() {
    BATON_ASSIGN_OR_RETURN(const Fleet::Processes servers, fleet_->Servers());
    double bytes = 0, descriptors = 0;
    for (const pid_t server : servers.All()) {
      BATON_ASSIGN_OR_RETURN(const Footprint footprint, ReadFootprint(server));
      bytes += static_cast<double>(footprint.proportional_bytes);
      descriptors += footprint.descriptors;
    }
    Set("memory_mib", bytes / (1 << 20), "MiB");
    Set("descriptors", descriptors, "");
    return absl::OkStatus();
  }

  absl::Status Idle() {
    BATON_ASSIGN_OR_RETURN(const Fleet::Processes processes, fleet_->Servers());
    const std::vector<pid_t>& workers = processes.workers;
    std::vector<pid_t> supervision = processes.keepers;
    supervision.insert(supervision.end(), processes.drivers.begin(), processes.drivers.end());
    supervision.insert(supervision.end(), processes.brokers.begin(), processes.brokers.end());
    supervision.insert(supervision.end(), {processes.batond, processes.control});
    const Cost supervision_before = ReadCost(supervision), workers_before = ReadCost(workers);
    const uint64_t begin = MonotonicNanoseconds();
    LetPass(options_.idle_seconds);
    const double elapsed_us = Microseconds(MonotonicNanoseconds() - begin);
    const Cost of_supervision = ReadCost(supervision) - supervision_before;
    const Cost of_workers = ReadCost(workers) - workers_before;
    Set("idle_supervision_percent_of_core", of_supervision.running_us / elapsed_us * 100, "%");
    Set("idle_workers_percent_of_core", of_workers.running_us / elapsed_us * 100, "%");
    const double all = (of_supervision.running_us + of_workers.running_us) / elapsed_us * 100;
    Set("idle_percent_of_core", all, "%");
    return absl::OkStatus();
  }

  // The answers for one service, and those for all, which grow with what there is.
  absl::Status Lists() {
    harness::OperatorClient& operators = fleet_->operators();
    const std::string service = Fleet::NameOf(0);
    const std::pair<const char*, std::function<absl::Status()>> calls[] = {
        {"get_service", [&] { return operators.GetService(service).status(); }},
        {"list_shards", [&] { return operators.ListShards(service).status(); }},
        {"list_workers", [&] { return operators.ListWorkers(service).status(); }},
        {"list_connections", [&] { return ListConnections(); }},
        {"list_services", [&] { return operators.ListServices().status(); }},
        {"list_all_workers", [&] { return operators.ListWorkers("").status(); }},
    };
    // gRPC's threads that have had nothing to do for a second sleep for a tenth of one at times:
    // the first call is no part of the others.
    BATON_ASSIGN_OR_RETURN(const std::vector<double> first, Time(1, calls[0].second));
    Set("first_call_after_idleness_us", first[0], "us");
    for (const auto& [call, make] : calls) {
      BATON_ASSIGN_OR_RETURN(const std::vector<double> times, Time(options_.calls, make));
      SetTimes(call, times, "us");
    }
    return absl::OkStatus();
  }

  // All of the service, page by page.
  absl::Status ListConnections() {
    uint32_t start = 0;
    do {
      BATON_ASSIGN_OR_RETURN(const v1::ListConnectionsResponse page,
                             fleet_->operators().ListConnections(Fleet::NameOf(0), start));
      start = page.next_page_start();
    } while (start != 0);
    return absl::OkStatus();
  }

  // From the start of its process until it is ready, and of that until it has its arena.
  absl::Status Attaches() {
    std::vector<double> starts, attaches;
    for (uint32_t i = 0; i < options_.attaches; ++i) {
      const uint64_t begin = MonotonicNanoseconds();
      BATON_ASSIGN_OR_RETURN(Fleet::Worker worker, fleet_->StartWorker(0));
      starts.push_back(Microseconds(MonotonicNanoseconds() - begin));
      BATON_RETURN_IF_ERROR(fleet_->StopWorker(0, std::move(worker)));
      BATON_ASSIGN_OR_RETURN(attaches.emplace_back(), Attach());
    }
    SetTimes("worker_start", starts, "us");
    SetTimes("attach", attaches, "us");
    return absl::OkStatus();
  }

  absl::StatusOr<double> Attach() {
    NoService nothing;
    WorkerOptions options;
    options.socket = fleet_->SocketOf(0);
    options.service = Fleet::NameOf(0);
    options.control_stream = false;
    const uint64_t begin = MonotonicNanoseconds();
    BATON_ASSIGN_OR_RETURN(const std::unique_ptr<baton::Worker> worker,
                           baton::Worker::Attach(options, &nothing));
    return Microseconds(MonotonicNanoseconds() - begin);
  }

  // Measures handoffs as the operator sees them and as a peer sees them. What a peer sees is the
  // longest silence of its connections.
  absl::Status Handoffs() {
    harness::PeerOptions options;
    options.connections = 4;
    options.rate = 1000;
    BATON_ASSIGN_OR_RETURN(const auto peer, fleet_->StartPeer(0, options));
    const std::vector<Fleet::Worker>& workers = fleet_->WorkersOf(0);
    std::vector<double> calls, silences;
    for (uint32_t i = 0; i < options_.handoffs; ++i) {
      BATON_RETURN_IF_ERROR(peer->Mark("before").status());
      const uint64_t to = workers[(i + 1) % 2].id;
      BATON_ASSIGN_OR_RETURN(const std::vector<double> one, Time(1, [&] {
                               return fleet_->operators().Handoff(Fleet::NameOf(0), to).status();
                             }));
      BATON_RETURN_IF_ERROR(peer->Settle());
      BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, peer->Mark("handoff"));
      calls.push_back(one[0]);
      silences.push_back(window.max_silence_us);
    }
    SetTimes("handoff", calls, "us");
    SetTimes("handoff_silence", silences, "us");
    return peer->StopChecked().status();
  }

  // One message at a time, while all other connections idle.
  absl::Status RoundTrips() {
    harness::PeerOptions options;
    options.window = 1;
    BATON_ASSIGN_OR_RETURN(const auto peer, fleet_->StartPeer(0, options));
    LetPass(options_.seconds);
    BATON_ASSIGN_OR_RETURN(const harness::JsonObject result, peer->StopChecked());
    Set("round_trip_p50_us", result.Number("latency_us.p50"), "us");
    Set("round_trip_p99_us", result.Number("latency_us.p99"), "us");
    return absl::OkStatus();
  }

  absl::Status Messages() {
    harness::PeerOptions options;
    options.connections = 4;
    options.window = fleet_->options().queue_depth / 2;
    BATON_ASSIGN_OR_RETURN(const auto peer, fleet_->StartPeer(0, options));
    BATON_RETURN_IF_ERROR(peer->Settle());
    BATON_RETURN_IF_ERROR(peer->Mark("before").status());
    LetPass(options_.seconds);
    BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, peer->Mark("messages"));
    Set("messages_per_second", static_cast<double>(window.messages) / window.seconds, "per second");
    return peer->StopChecked().status();
  }

  absl::Status StillConnected() {
    return harness::WaitUntil("the idle connections, and no others", [&] {
      const auto count = fleet_->CountConnections();
      return count.ok() && *count == fleet_->options().connections;
    });
  }

  static absl::StatusOr<std::vector<double>> Time(uint32_t count,
                                                  const std::function<absl::Status()>& call) {
    std::vector<double> times;
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t begin = MonotonicNanoseconds();
      BATON_RETURN_IF_ERROR(call());
      times.push_back(Microseconds(MonotonicNanoseconds() - begin));
    }
    return times;
  }

  // What is measured happens meanwhile.
  static void LetPass(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  const std::string name_;
  const Options& options_;
  Round* const round_;
  std::unique_ptr<Fleet> fleet_;
};

// What is compared to the small Baton's: of one wide service, and of many.
void Compare(Suite* suite) {
  for (const char* side : {"wide", "many"}) {
    for (const char* figure :
         {"get_service_p50_us", "get_service_p99_us", "list_shards_p50_us", "list_workers_p50_us",
          "list_services_p50_us", "handoff_p50_us", "handoff_p99_us", "handoff_silence_p50_us",
          "worker_start_p50_us", "attach_p50_us", "round_trip_p50_us", "round_trip_p99_us"}) {
      suite->Compare({absl::StrCat(side, "_", figure), absl::StrCat(side, "_", figure),
                      absl::StrCat("small_", figure), Better::kLess});
    }
    suite->Compare({absl::StrCat(side, "_messages_per_second"),
                    absl::StrCat(side, "_messages_per_second"), "small_messages_per_second",
                    Better::kMore});
  }
  // In the Baton of many services and many workers, one percent is the bar only for the processes
  // that supervise them.
  suite->Compare({"wide_idle_to_one_percent_of_core", "wide_idle_percent_of_core",
                  "one_percent_of_core", Better::kLess, 1});
  suite->Compare({"many_idle_supervision_to_one_percent_of_core",
                  "many_idle_supervision_percent_of_core", "one_percent_of_core", Better::kLess,
                  1});
  suite->Compare({"many_idle_to_one_percent_of_core", "many_idle_percent_of_core",
                  "one_percent_of_core", Better::kLess});
}

// The Batons run one after the other: a large one is not to cost the small one anything.
absl::Status MeasureRound(const Options& options, const Suite& suite, Round& round) {
  FleetOptions small, wide, many;
  small.binaries = harness::Binaries(options.binary_directory);
  wide = many = small;
  wide.connections = many.connections = suite.Scaled(options.connections, 16);
  many.services = suite.Scaled(options.services, 2);
  many.workers = std::max(2u, suite.Scaled(options.workers) / many.services);
  round.Set("connections", many.connections, "");
  round.Set("services", many.services, "");
  round.Set("workers", uint64_t{many.services} * many.workers, "");
  round.Set("one_percent_of_core", 1, "%");
  for (const auto& [name, fleet] :
       {std::pair("small", &small), std::pair("wide", &wide), std::pair("many", &many)}) {
    BATON_RETURN_IF_ERROR(Side(name, options, &round).Measure(*fleet));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "A Baton of one service with many connections and one of many services, workers and "
      "connections, each beside a small one: lists, handoffs, attaching, round trips, idleness.");
  AddSuiteOptions(flags, &options.suite);
  flags.Add("--connections", &options.connections, "that idle, times --scale [10000]")
      .Within(1, 60'000);
  flags.Add("--services", &options.services, "times --scale [64]").Within(1, 1000);
  flags.Add("--workers", &options.workers, "of all services, times --scale [256]")
      .Within(1, 10'000);
  flags.Add("--calls", &options.calls, "of each kind that lists something [50]").Within(1, 100'000);
  flags.Add("--handoffs", &options.handoffs, "planned, of one service [20]").Within(1, 100'000);
  flags.Add("--attaches", &options.attaches, "of a further worker [5]").Within(1, 10'000);
  flags.Add("--seconds", &options.seconds, "of each kind of traffic [3]").Within(0.01, 3600.0);
  flags.Add("--idle-seconds", &options.idle_seconds, "of idleness [10]").Within(0.01, 3600.0);
  flags.Add("--bin", &options.binary_directory, "where the programs are [$BATON_BIN]");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  Suite suite("scale", options.suite);
  Compare(&suite);
  return suite.RunToExit([&](Round& round) { return MeasureRound(options, suite, round); });
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
