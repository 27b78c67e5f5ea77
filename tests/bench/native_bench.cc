// What native ownership costs on queues of mlx5's format: a raw loop, a native worker and a
// brokered one, and Debian's libmlx5, each with the same peer, NIC and processors, in one run.
// `./run bench native` starts it.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/bench/owned_side.h"
#include "tests/bench/suite.h"
#include "tests/harness/processors.h"
#include "worker/examples/common/flags.h"

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

// The bars are those of the wire through memory, between two NICs.
constexpr double kRoundTripBar = 1.10, kRateBar = 0.95;

const std::map<std::string, Wire> kWires = {
    {"loopback", Wire::kLoopback}, {"memory", Wire::kMemory}, {"tcp", Wire::kTcp}};

// An owner of queues on a wire.
struct Contender {
  OwnerKind kind;
  Wire wire;
};

// What its figures are called by.
std::string NameOf(const Contender& contender) {
  for (const auto& [name, wire] : kWires) {
    if (wire != contender.wire || wire == Wire::kLoopback) continue;
    return absl::StrCat(NameOf(contender.kind), "_", name);
  }
  return NameOf(contender.kind);
}

struct Options {
  SuiteOptions suite;
  std::vector<Wire> wires = {Wire::kLoopback, Wire::kMemory};
  std::vector<std::string> only;
};

class NativeBench {
 public:
  NativeBench(const Options& options, Suite* suite) : options_(options), suite_(*suite) {
    for (const Wire wire : options.wires) {
      for (const OwnerKind kind : kOwnerKinds) {
        if (kind == OwnerKind::kLibrary && wire != Wire::kLoopback) continue;
        contenders_.push_back({kind, wire});
        if (kind != OwnerKind::kRaw) CompareWithRaw(contenders_.back());
      }
    }
    Plot rates{"rates", "Messages of 64 bytes and back", "under way", kRateUnit, {}};
    for (const Contender& contender : contenders_) {
      Line line{NameOf(contender), {}};
      for (const uint32_t window : {1, 8, 32}) {
        const std::string rate = absl::StrCat("rate_", window);
        if (IsWanted(window == 1 ? "round_trip" : rate)) {
          line.points.emplace_back(window, absl::StrCat(rate, "_", NameOf(contender)));
        }
      }
      rates.lines.push_back(line);
    }
    suite_.Draw(rates);
  }

  absl::Status Measure(Round& round) {
    const size_t count = contenders_.size();
    for (size_t i = 0; i < count; ++i) {
      // None is always first.
      absl::Status status = MeasureSide(contenders_[(i + round.number()) % count], round);
      harness::RunOnProcessor(-1);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  bool IsWanted(const std::string& name) const {
    const std::vector<std::string>& only = options_.only;
    return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
  }

  void Compare(const std::string& figure, const Contender& contender, Better better,
               double bar = 0) {
    const bool judged = contender.kind == OwnerKind::kNative && contender.wire == Wire::kMemory;
    const std::string of = absl::StrCat(figure, "_", NameOf(contender));
    const std::string raw = absl::StrCat(figure, "_", NameOf({OwnerKind::kRaw, contender.wire}));
    suite_.Compare({of + "_to_raw", of, raw, better, judged ? bar : 0});
  }

  void CompareWithRaw(const Contender& contender) {
    if (IsWanted("round_trip")) {
      Compare("round_trip", contender, Better::kLess, kRoundTripBar);
      Compare("round_trip_p99", contender, Better::kLess);
      Compare("rate_1", contender, Better::kMore);
    }
    if (IsWanted("paced")) {
      Compare("paced", contender, Better::kLess);
      Compare("paced_p99", contender, Better::kLess);
    }
    if (IsWanted("rate_8")) Compare("rate_8", contender, Better::kMore);
    if (IsWanted("rate_32")) Compare("rate_32", contender, Better::kMore, kRateBar);
    for (const char* const turns : {"turns_1", "turns_32"}) {
      if (IsWanted(turns) && HasTurns(contender.kind)) Compare(turns, contender, Better::kLess);
    }
  }

  // With a brokered worker, the engine does its part of a message in turns of its own. The owner's
  // turns alone would not tell what a message takes.
  static bool HasTurns(OwnerKind kind) { return kind != OwnerKind::kBrokered; }

  absl::Status MeasureSide(const Contender& contender, Round& round) {
    OwnedSideOptions side_options;
    side_options.kind = contender.kind;
    side_options.wire = contender.wire;
    side_options.processor = processors_.others;
    BATON_ASSIGN_OR_RETURN(const std::unique_ptr<OwnedSide> side, OwnedSide::Start(side_options));
    harness::RunOnProcessor(processors_.ours);
    for (const Workload& workload : kWorkloads) {
      if (!IsWanted(workload.name) ||
          (workload.measured == Measured::kTurns && !HasTurns(contender.kind))) {
        continue;
      }
      BATON_RETURN_IF_ERROR(MeasureOne(workload, contender, *side, round));
    }
    harness::RunOnProcessor(-1);
    return absl::OkStatus();
  }

  absl::Status MeasureOne(const Workload& workload, const Contender& contender, OwnedSide& side,
                          Round& round) {
    const uint32_t count = suite_.Scaled(workload.count, 2 * workload.window);
    const std::string name = NameOf(contender);
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
  std::vector<Contender> contenders_;
  const harness::ProcessorPair processors_ = harness::FindProcessorPair();
};

int Main(int argc, char** argv) {
  Options options;
  examples::Flags flags("A native worker and a brokered one, beside raw loops on the same queues.");
  AddSuiteOptions(flags, &options.suite);
  flags.Add("--wire", &options.wires, kWires,
            "between owner and peer: loopback (both on one NIC), memory, tcp [loopback memory]");
  std::vector<std::string> names;
  for (const Workload& workload : kWorkloads) names.emplace_back(workload.name);
  flags.Add("--only", &options.only, "workloads, of all").OneOf(names);
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  Suite suite("native", options.suite);
  NativeBench bench(options, &suite);
  return suite.RunToExit([&](Round& round) { return bench.Measure(round); });
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
