// The data path of Baton on a real RDMA device, brokered and native, beside raw verbs: in one run,
// on one device, in turns. `./run bench rdma` starts it.
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/bench/cost.h"
#include "tests/bench/report.h"
#include "tests/bench/results.h"
#include "tests/bench/side.h"
#include "tests/demo/cpu_meter.h"

namespace baton::bench {
namespace {

struct Options {
  SideOptions side;
  uint32_t rounds = 5;
  double scale = 1;  // of the numbers of operations
  std::vector<std::string> only;
  std::vector<std::string> reference;
  std::string output;
};

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : options_(options) {}

  absl::StatusOr<Results> Run() {
    BATON_RETURN_IF_ERROR(Start());
    for (uint32_t i = 0; i < options_.rounds; ++i) {
      const absl::Status status = DoRound(i);
      if (status.ok()) continue;
      for (const auto& side : sides_) side->DumpLogs();
      return status;
    }
    return std::move(results_);
  }

 private:
  absl::Status Start() {
    for (const SideName name : kSides) {
      auto& side = sides_[static_cast<size_t>(name)];
      if (name == SideName::kBrokered) {
        BATON_ASSIGN_OR_RETURN(side, Side::StartBrokered(options_.side));
      } else if (name == SideName::kNative) {
        BATON_ASSIGN_OR_RETURN(side, Side::StartNative(options_.side));
      } else {
        BATON_ASSIGN_OR_RETURN(side, Side::StartRaw(options_.side, name == SideName::kPolling));
      }
      BATON_RETURN_IF_ERROR(side->client().Rest());
    }
    return absl::OkStatus();
  }

  absl::Status DoRound(uint32_t number) {
    Round round;
    const MachineTimes before = ReadMachineTimes();
    for (size_t i = 0; i < kWorkloads.size(); ++i) {
      if (!IsWanted(kWorkloads[i])) continue;
      for (size_t j = 0; j < kSides.size(); ++j) {
        const size_t side = (i + j + number) % kSides.size();  // none is always the first
        BATON_ASSIGN_OR_RETURN(round.samples[i][side], Measure(kWorkloads[i], *sides_[side]));
      }
    }
    round.others_cores = ReadMachineTimes().OthersSince(before);
    std::fprintf(stderr, "round %u of %u; others used %.2f cores\n", number + 1, options_.rounds,
                 round.others_cores);
    results_.rounds.push_back(round);
    return absl::OkStatus();
  }

  bool IsWanted(const Workload& workload) const {
    return options_.only.empty() || std::find(options_.only.begin(), options_.only.end(),
                                              workload.name) != options_.only.end();
  }

  absl::StatusOr<Sample> Measure(const Workload& workload, Side& side) const {
    const auto count =
        std::max(2 * workload.window, static_cast<uint32_t>(workload.count * options_.scale));
    BATON_RETURN_IF_ERROR(Do(workload, side, std::max(workload.window, count / 10)).status());
    const Cost before = ReadCost(side.processes());
    BATON_ASSIGN_OR_RETURN(const Timing timing, Do(workload, side, count));
    const Cost cost = ReadCost(side.processes()) - before;
    BATON_RETURN_IF_ERROR(side.client().Rest());
    return Sample{timing.p50_us,           timing.p99_us,           count / timing.seconds,
                  cost.running_us / count, cost.waiting_us / count, cost.sleeps / count};
  }

  static absl::StatusOr<Timing> Do(const Workload& workload, Side& side, uint32_t count) {
    return workload.writes ? side.client().Write(count, workload.window, workload.size)
                           : side.client().Echo(count, workload.window);
  }

  const Options options_;
  std::array<std::unique_ptr<Side>, kSides.size()> sides_;
  Results results_;
};

absl::Status Describe(const Options& options, Results* results) {
  utsname name = {};
  uname(&name);
  results->kernel = name.release;
  results->cores = demo::UsableCores();
  results->virtual_machine = std::getenv("BATON_VM") != nullptr;
  for (const std::string& text : options.reference) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("--reference ", text, ": NAME=VALUE"));
    }
    results->reference.emplace_back(text.substr(0, equals),
                                    std::strtod(text.c_str() + equals + 1, nullptr));
  }
  return absl::OkStatus();
}

absl::Status RunAndReport(const Options& options) {
  BATON_ASSIGN_OR_RETURN(Results results, Benchmark(options).Run());
  BATON_RETURN_IF_ERROR(Describe(options, &results));
  std::fputs(ToTable(results).c_str(), stdout);
  if (options.output.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(options.output, error);
  const std::string path = options.output + "/rdma.json";
  std::ofstream file(path);
  file << ToJson(results) << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write " + path);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Messages and writes of a worker of Baton over RDMA, beside the same over raw verbs."};
  app.add_option("--device", options.side.device, "rdma, or rdma:NAME [rdma]");
  app.add_option("--address", options.side.host, "IPv4 address of the device")->required();
  app.add_option("--output", options.output, "directory for rdma.json");
  app.add_option("--rounds", options.rounds, "measured in turns, so many times [5]")
      ->check(CLI::Range(1, 1000));
  app.add_option("--scale", options.scale, "so many times the operations of a measurement [1]")
      ->check(CLI::Range(0.001, 1000.0));
  app.add_option("--only", options.only, "workloads, of all");
  app.add_option("--reference", options.reference, "NAME=VALUE, a figure to be shown beside");
  app.add_option("--worker-argument", options.side.worker_arguments, "for bench-worker");
  app.add_option("--bin", options.side.binary_directory, "where the programs are [$BATON_BIN]");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = RunAndReport(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "rdma_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
