// What Baton takes of memory: for a connection, a shard, a service, its processes; and whether that
// stays so under churn. `./run bench size` starts it.
#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/bench/fleet.h"
#include "tests/bench/footprint.h"
#include "tests/bench/layout_bytes.h"
#include "tests/bench/soak.h"
#include "tests/bench/soft_bytes.h"
#include "tests/bench/suite.h"

namespace baton::bench {
namespace {

struct Options {
  SuiteOptions suite;
  std::string binary_directory;
  // More than the events that operators are told of: those are bounded, and are not to be taken for
  // what a connection holds.
  uint32_t connections = 5000;
  double soak_seconds = 60;
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

  // Of a Baton that has no connections, and by how much one with twice as many has more.
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
    BATON_ASSIGN_OR_RETURN(const SoakResult soak, Soak(binaries_, options_.soak_seconds).Run());
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

absl::Status RunAndReport(const Options& options) {
  Suite suite("size", options.suite);
  Compare(&suite);
  BATON_RETURN_IF_ERROR(
      suite.Run([&](Round& round) { return Measurement(options, suite, &round).Measure(); }));
  return suite.Report();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "What a connection, a shard and a service of Baton take of memory, and whether its processes "
      "grow while peers come and go and workers are handed over to, killed and upgraded."};
  AddSuiteOptions(app, &options.suite);
  app.add_option("--connections", options.connections,
                 "that idle, and twice as many, times --scale [5000]")
      ->check(CLI::Range(1, 30'000));
  app.add_option("--soak-seconds", options.soak_seconds, "of churn in each round [60]")
      ->check(CLI::Range(0.1, 1e6));
  app.add_option("--bin", options.binary_directory, "where the programs are [$BATON_BIN]");
  CLI11_PARSE(app, argc, argv);
  return ExitCode("size", RunAndReport(options));
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
