// What native ownership costs on queues of mlx5's format: a raw loop, a native worker and a
// brokered one, and Debian's libmlx5, each with the same peer, NIC and processors, in one run.
// `./run bench native` starts it.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/bench/owned_side.h"
#include "tests/bench/ping_pong.h"
#include "tests/bench/suite.h"

namespace baton::bench {
namespace {

constexpr const char* kRateUnit = "messages and answers per second";

// The figures of a workload. kTurns: the owner measures its turns.
enum class Measured : uint8_t { kRoundTrip, kRate, kTurns };

// `count` messages of 64 bytes and their answers, `window` of them under way.
struct Workload {
  const char* name;
  uint32_t window;
  uint32_t count;
  Measured measured;
  uint64_t pause_ns = 0;  // from an answer to the next message
};
constexpr std::array<Workload, 6> kWorkloads = {{
    {"round_trip", 1, 40'000, Measured::kRoundTrip},
    // The owner is done with an answer before the next message comes.
    {"paced", 1, 20'000, Measured::kRoundTrip, 3'000},
    {"rate_8", 8, 80'000, Measured::kRate},
    {"rate_32", 32, 160'000, Measured::kRate},
    {"turns_1", 1, 20'000, Measured::kTurns},
    {"turns_32", 32, 80'000, Measured::kTurns},
}};

// Bars are those of a wire through memory. With TCP, the wire takes more than any owner does.
constexpr double kRoundTripBar = 1.10, kRateBar = 0.95;

struct Options {
  SuiteOptions suite;
  Wire wire = Wire::kLoopback;
  std::vector<std::string> only;
};

class NativeBench {
 public:
  NativeBench(const Options& options, Suite* suite) : options_(options), suite_(*suite) {
    suite_.Note("wire", options.wire == Wire::kTcp ? "tcp" : "loopback");
    for (const OwnerKind kind : kOwnerKinds) {
      if (kind == OwnerKind::kLibrary && options.wire != Wire::kLoopback) continue;
      kinds_.push_back(kind);
      if (kind != OwnerKind::kRaw) CompareWithRaw(kind);
    }
    Plot rates{"rates", "Messages of 64 bytes and back", "under way", kRateUnit, {}};
    for (const OwnerKind kind : kinds_) {
      Line line{NameOf(kind), {}};
      for (const uint32_t window : {1, 8, 32}) {
        const std::string rate = absl::StrCat("rate_", window);
        if (IsWanted(window == 1 ? "round_trip" : rate)) {
          line.points.emplace_back(window, absl::StrCat(rate, "_", NameOf(kind)));
        }
      }
      rates.lines.push_back(line);
    }
    suite_.Draw(rates);
  }

  absl::Status Measure(Round& round) {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      const OwnerKind kind = kinds_[(i + round.number()) % kinds_.size()];  // none always first
      absl::Status status = MeasureSide(kind, round);
      RunOnProcessor(-1);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  bool IsWanted(const std::string& name) const {
    const std::vector<std::string>& only = options_.only;
    return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
  }

  void Compare(const std::string& figure, OwnerKind kind, Better better, double bar = 0) {
    const bool judged = kind == OwnerKind::kNative && options_.wire != Wire::kTcp;
    const std::string of = absl::StrCat(figure, "_", NameOf(kind));
    suite_.Compare({of + "_to_raw", of, absl::StrCat(figure, "_", NameOf(OwnerKind::kRaw)), better,
                    judged ? bar : 0});
  }

  void CompareWithRaw(OwnerKind kind) {
    if (IsWanted("round_trip")) {
      Compare("round_trip", kind, Better::kLess, kRoundTripBar);
      Compare("round_trip_p99", kind, Better::kLess);
      Compare("rate_1", kind, Better::kMore);
    }
    if (IsWanted("paced")) {
      Compare("paced", kind, Better::kLess);
      Compare("paced_p99", kind, Better::kLess);
    }
    if (IsWanted("rate_8")) Compare("rate_8", kind, Better::kMore);
    if (IsWanted("rate_32")) Compare("rate_32", kind, Better::kMore, kRateBar);
    for (const char* const turns : {"turns_1", "turns_32"}) {
      if (IsWanted(turns) && HasTurns(kind)) Compare(turns, kind, Better::kLess);
    }
  }

  // Of a brokered worker the engine has its part of a message, in turns of its own.
  static bool HasTurns(OwnerKind kind) { return kind != OwnerKind::kBrokered; }

  absl::Status MeasureSide(OwnerKind kind, Round& round) {
    OwnedSideOptions side_options;
    side_options.kind = kind;
    side_options.wire = options_.wire;
    side_options.processor = processors_.others;
    BATON_ASSIGN_OR_RETURN(const std::unique_ptr<OwnedSide> side, OwnedSide::Start(side_options));
    RunOnProcessor(processors_.ours);
    for (const Workload& workload : kWorkloads) {
      if (!IsWanted(workload.name) || (workload.measured == Measured::kTurns && !HasTurns(kind)))
        continue;
      BATON_RETURN_IF_ERROR(MeasureOne(workload, kind, *side, round));
    }
    RunOnProcessor(-1);
    return absl::OkStatus();
  }

  absl::Status MeasureOne(const Workload& workload, OwnerKind kind, OwnedSide& side, Round& round) {
    const uint32_t count = suite_.Scaled(workload.count, 2 * workload.window);
    const std::string name = NameOf(kind);
    BATON_RETURN_IF_ERROR(
        side.Exchange(std::max(workload.window, count / 10), workload.window).status());
    if (workload.measured == Measured::kTurns) {
      BATON_ASSIGN_OR_RETURN(const double ns, side.MeasureTurns(count, workload.window));
      round.Set(absl::StrCat(workload.name, "_", name), ns, "ns of the owner for a message");
      return absl::OkStatus();
    }
    BATON_ASSIGN_OR_RETURN(const Exchanged exchanged,
                           side.Exchange(count, workload.window, workload.pause_ns));
    if (workload.measured == Measured::kRoundTrip) {
      round.Set(absl::StrCat(workload.name, "_", name), exchanged.p50_us, "us, p50");
      round.Set(absl::StrCat(workload.name, "_p99_", name), exchanged.p99_us, "us");
    }
    if (workload.pause_ns > 0) return absl::OkStatus();
    round.Set(absl::StrCat("rate_", workload.window, "_", name), exchanged.per_second, kRateUnit);
    return absl::OkStatus();
  }

  const Options& options_;
  Suite& suite_;
  std::vector<OwnerKind> kinds_;
  const TwoProcessors processors_ = FindTwoProcessors();
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"A native worker and a brokered one, beside raw loops on the same queues."};
  AddSuiteOptions(app, &options.suite);
  const std::map<std::string, Wire> wires = {{"loopback", Wire::kLoopback}, {"tcp", Wire::kTcp}};
  app.add_option("--wire", options.wire,
                 "between owner and peer: loopback (both on one NIC), or tcp [loopback]")
      ->transform(CLI::CheckedTransformer(wires));
  std::vector<std::string> names;
  for (const Workload& workload : kWorkloads) names.emplace_back(workload.name);
  app.add_option("--only", options.only, "workloads, of all")->check(CLI::IsMember(names));
  CLI11_PARSE(app, argc, argv);
  Suite suite("native", options.suite);
  NativeBench bench(options, &suite);
  absl::Status status = suite.Run([&](Round& round) { return bench.Measure(round); });
  if (status.ok()) status = suite.Report();
  return ExitCode("native", status);
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
