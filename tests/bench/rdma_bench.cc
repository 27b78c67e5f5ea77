// The data path of Baton on a real RDMA device, brokered and native, beside raw verbs: in one run,
// on one device, in turns. `./run bench rdma` starts it.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/bench/cost.h"
#include "tests/bench/server.h"
#include "tests/bench/side.h"
#include "tests/bench/suite.h"

namespace baton::bench {
namespace {

constexpr uint32_t kMaxConnections = 4;
constexpr std::array<SideName, 5> kCompared = {SideName::kPolling, SideName::kEvents,
                                               SideName::kBrokered, SideName::kNative,
                                               SideName::kRelayed};

struct Options {
  SuiteOptions suite;
  ServerOptions server;
  std::vector<std::string> only;
  std::vector<std::string> reference;
};

std::string FigureOf(const Workload& workload, SideName side) {
  return absl::StrCat(workload.name, "_", NameOf(side));
}

// What is asked of Baton, to what raw verbs do in the same round.
struct Goal {
  const char* workload;
  SideName side;
  SideName to;
  double bar;
};
constexpr std::array<Goal, 9> kGoals = {{
    {"write_64B", SideName::kBrokered, SideName::kPolling, 1.15},
    {"echo_64B", SideName::kBrokered, SideName::kEvents, 0.8},
    {"echo_64B", SideName::kBrokered, SideName::kPolling, 2.5},
    {"write_64KiB", SideName::kBrokered, SideName::kPolling, 0.95},
    {"write_4KiB", SideName::kBrokered, SideName::kPolling, 0.9},
    {"echo_64B", SideName::kNative, SideName::kPolling, 1.05},
    {"messages_batch_32", SideName::kNative, SideName::kPolling, 0.95},
    {"write_64KiB", SideName::kNative, SideName::kPolling, 0.95},
    {"write_4KiB", SideName::kNative, SideName::kPolling, 0.95},
}};

double BarOf(const Workload& workload, SideName side, SideName to) {
  for (const Goal& goal : kGoals) {
    if (std::string_view(goal.workload) == workload.name && goal.side == side && goal.to == to) {
      return goal.bar;
    }
  }
  return 0;
}

bool IsWanted(const std::vector<std::string>& only, const Workload& workload) {
  return only.empty() || std::find(only.begin(), only.end(), workload.name) != only.end();
}

void CompareSides(const std::vector<std::string>& only, Suite* suite) {
  for (const SideName side : {SideName::kBrokered, SideName::kNative}) {
    for (const SideName to : {SideName::kPolling, SideName::kEvents}) {
      for (const Workload& workload : kWorkloads) {
        if (!IsWanted(only, workload)) continue;
        suite->Compare({absl::StrCat(FigureOf(workload, side), "_to_", NameOf(to)),
                        FigureOf(workload, side), FigureOf(workload, to),
                        workload.figure == Figure::kLatency ? Better::kLess : Better::kMore,
                        BarOf(workload, side, to)});
      }
    }
  }
}

// What Baton adds to what any broker costs there, and what that is.
void CompareWithRelay(const std::vector<std::string>& only, Suite* suite) {
  for (const Workload& workload : kWorkloads) {
    if (!IsWanted(only, workload)) continue;
    const Better better = workload.figure == Figure::kLatency ? Better::kLess : Better::kMore;
    const std::string relayed = FigureOf(workload, SideName::kRelayed);
    suite->Compare(
        {relayed + "_to_polling", relayed, FigureOf(workload, SideName::kPolling), better});
    const std::string brokered = FigureOf(workload, SideName::kBrokered);
    suite->Compare({brokered + "_to_relayed", brokered, relayed, better});
  }
}

void DrawSides(Suite* suite) {
  Plot rates{"batches", "Messages of 64 bytes and back", "under way", "messages per second", {}};
  Plot writes{"writes", "WRITE, 16 under way", "bytes", "MB/s", {}};
  Plot reads{"reads", "READ, 16 under way", "bytes", "MB/s", {}};
  for (const SideName side : kCompared) {
    Line rate{NameOf(side), {}}, write{NameOf(side), {}}, read{NameOf(side), {}};
    for (const Workload& workload : kWorkloads) {
      const std::string figure = FigureOf(workload, side);
      if (workload.figure == Figure::kRate) rate.points.emplace_back(workload.window, figure);
      if (workload.figure != Figure::kBandwidth) continue;
      (workload.op == Op::kRead ? read : write).points.emplace_back(workload.size, figure);
    }
    rates.lines.push_back(rate);
    writes.lines.push_back(write);
    reads.lines.push_back(read);
  }
  for (Plot* plot : {&rates, &writes, &reads}) suite->Draw(std::move(*plot));
}

class Benchmark {
 public:
  Benchmark(const Options& options, Suite* suite) : options_(options), suite_(*suite) {
    CompareSides(options.only, suite);
    CompareWithRelay(options.only, suite);
    DrawSides(suite);
  }

  absl::Status Run() {
    BATON_RETURN_IF_ERROR(Start());
    absl::Status status = suite_.Run([this](Round& round) { return Measure(round); });
    if (!status.ok()) {
      for (const auto& side : sides_) side->server().DumpLogs();
    }
    return status;
  }

 private:
  absl::Status Start() {
    for (const SideName name : kCompared) {
      auto& side = sides_[static_cast<size_t>(name)];
      BATON_ASSIGN_OR_RETURN(side, Side::Start(name, options_.server));
      BATON_RETURN_IF_ERROR(side->client().Rest());
    }
    return absl::OkStatus();
  }

  absl::Status Measure(Round& round) {
    for (size_t i = 0; i < kWorkloads.size(); ++i) {
      if (!IsWanted(options_.only, kWorkloads[i])) continue;
      for (size_t j = 0; j < kCompared.size(); ++j) {
        const SideName side =
            kCompared[(i + j + round.number()) % kCompared.size()];  // none always first
        BATON_RETURN_IF_ERROR(MeasureOne(kWorkloads[i], side, round));
      }
    }
    return SetReferences(round);
  }

  absl::Status MeasureOne(const Workload& workload, SideName name, Round& round) {
    Side& side = *sides_[static_cast<size_t>(name)];
    const uint32_t count = suite_.Scaled(workload.count, 2 * workload.window);
    BATON_RETURN_IF_ERROR(Do(workload, side, std::max(workload.window, count / 10)).status());
    const Cost before = ReadCost(side.server().processes());
    BATON_ASSIGN_OR_RETURN(const Timing timing, Do(workload, side, count));
    const Cost cost = ReadCost(side.server().processes()) - before;
    BATON_RETURN_IF_ERROR(side.client().Rest());
    const std::string figure = FigureOf(workload, name);
    const double per_second = count / timing.seconds;
    switch (workload.figure) {
      case Figure::kLatency:
        round.Set(figure, timing.p50_us, "us, p50");
        round.Set(figure + "_p99", timing.p99_us, "us");
        round.Set(figure + "_p99.9", timing.p999_us, "us");
        break;
      case Figure::kRate:
        round.Set(figure, per_second, "per second");
        break;
      case Figure::kBandwidth:
        round.Set(figure, per_second * workload.size * 1e-6, "MB/s");
        break;
    }
    // Microseconds an operation are seconds a million.
    round.Set(figure + "_cpu", cost.running_us / count, "s of the server's processors per million");
    round.Set(figure + "_wait", cost.waiting_us / count, "s of waiting for one per million");
    round.Set(figure + "_sleeps", cost.sleeps / count, "per operation");
    return absl::OkStatus();
  }

  static absl::StatusOr<Timing> Do(const Workload& workload, Side& side, uint32_t count) {
    return workload.op == Op::kEcho
               ? side.client().Echo(count, workload.window)
               : side.client().Remote(workload.op, count, workload.window, workload.size);
  }

  absl::Status SetReferences(Round& round) const {
    for (const std::string& text : options_.reference) {
      const size_t equals = text.find('=');
      double value = 0;
      if (equals == std::string::npos || !absl::SimpleAtod(text.substr(equals + 1), &value)) {
        return absl::InvalidArgumentError(absl::StrCat("--reference ", text, ": NAME=VALUE"));
      }
      round.Set(text.substr(0, equals), value, "");
    }
    return absl::OkStatus();
  }

  const Options& options_;
  Suite& suite_;
  std::array<std::unique_ptr<Side>, kCompared.size()> sides_;
};

int Main(int argc, char** argv) {
  Options options;
  options.server.raw_program = "bench-raw-server";
  options.server.worker_program = "bench-worker";
  options.server.max_connections = kMaxConnections;
  options.server.queue_depth = kSlots;
  CLI::App app{
      "Messages, writes, reads and atomics of a worker of Baton over RDMA, beside the same over "
      "raw "
      "verbs."};
  AddSuiteOptions(app, &options.suite);
  app.add_option("--device", options.server.device, "rdma, or rdma:NAME [rdma]");
  app.add_option("--address", options.server.host, "IPv4 address of the device")->required();
  app.add_option("--only", options.only, "workloads, of all");
  app.add_option("--reference", options.reference, "NAME=VALUE, a figure to be shown beside");
  app.add_option("--worker-argument", options.server.worker_arguments, "for bench-worker");
  app.add_option("--bin", options.server.binary_directory, "where the programs are [$BATON_BIN]");
  CLI11_PARSE(app, argc, argv);
  Suite suite("rdma", options.suite);
  absl::Status status = Benchmark(options, &suite).Run();
  if (status.ok()) status = suite.Report();
  return ExitCode("rdma", status);
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
