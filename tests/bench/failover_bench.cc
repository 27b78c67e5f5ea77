// failover_bench: what peers see of handoffs and deaths, over the number of their connections,
// beside services that are not kept: clients connect anew, or have connections to another one.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "tests/bench/failover_side.h"
#include "tests/bench/fleet.h"
#include "tests/bench/suite.h"
#include "tests/harness/quantile.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {

struct NamedEvent {
  FailoverEvent event;
  const char* name;
  const char* title;
};
// Without Baton.
inline constexpr char kReconnect[] = "reconnect";
inline constexpr char kStandby[] = "standby";
inline constexpr char kDrain[] = "drain";

// Not empty: connections, ballast_mib.
struct FailoverPlan {
  std::vector<uint32_t> connections = {1, 100, 1000, 10'000};
  std::vector<uint32_t> ballast_mib = {0, 256};
  std::vector<std::string> only;  // events, or one of those without Baton; empty: all

  bool Wants(std::string_view event) const;
  bool WantsStandby() const { return Wants(kStandby) || Wants(kDrain); }
  std::vector<NamedEvent> Events() const;
  uint32_t fewest_connections() const;
  uint32_t most_connections() const;
  uint32_t least_ballast() const;
};

// "EVENT_N" or "EVENT_N_MMiB"; the silence's figure has "_ms" behind it.
std::string NameOf(std::string_view event, uint32_t connections, uint32_t ballast_mib);

// Medians of several events of one kind, so that one hiccup does not decide. Of the silence the
// longest, too, of which the suite takes the longest of all rounds. `baton`: the parts that the
// keeper tells, too.
void SetFigures(const std::string& name, const std::vector<Silence>& events, bool baton,
                Round* round);

// Adds the ratios, and the plot.
void Compare(const FailoverPlan& plan, Suite* suite);

namespace {

constexpr double kHandoffBar = 1.5;  // of most connections, to that of fewest
constexpr double kBallastBar = 3;    // of a hot crash with memory, to that without

constexpr NamedEvent kEvents[] = {
    {FailoverEvent::kHandoff, "handoff", "planned handoff"},
    {FailoverEvent::kHotCrash, "hot_crash", "crash, hot standby"},
    {FailoverEvent::kColdCrash, "cold_crash", "crash, no standby"},
    {FailoverEvent::kHang, "hang", "hang, hot standby"},
};

struct NamedBaseline {
  const char* name;
  const char* title;
};
constexpr NamedBaseline kBaselines[] = {
    {kReconnect, "crash, reconnect, without Baton"},
    {kStandby, "crash, connected standby, without Baton"},
    {kDrain, "graceful restart, connected standby, without Baton"},
};

struct Part {
  const char* suffix;
  double Silence::*value;
  bool baton_only;
};
constexpr Part kParts[] = {
    {"_ms", &Silence::longest, false},      {"_noticed_ms", &Silence::noticed, true},
    {"_inside_ms", &Silence::inside, true}, {"_reply_ms", &Silence::reply, true},
    {"_all_ms", &Silence::all, false},      {"_quiet_ms", &Silence::quiet, false},
};

std::string SilenceOf(std::string_view event, uint32_t connections, uint32_t ballast_mib) {
  return NameOf(event, connections, ballast_mib) + "_ms";
}

void CompareNumbers(const FailoverPlan& plan, Suite* suite) {
  const uint32_t most = plan.most_connections(), fewest = plan.fewest_connections();
  if (fewest == most) return;
  for (const NamedEvent& event : plan.Events()) {
    suite->Compare({absl::StrCat(event.name, "_", most, "_to_", fewest),
                    SilenceOf(event.name, most, plan.least_ballast()),
                    SilenceOf(event.name, fewest, plan.least_ballast()), Better::kLess,
                    event.event == FailoverEvent::kHandoff ? kHandoffBar : 0});
  }
}

// With fewest connections the memory weighs most.
void CompareBallast(const FailoverPlan& plan, Suite* suite) {
  const uint32_t fewest = plan.fewest_connections(), least = plan.least_ballast();
  for (const uint32_t ballast_mib : plan.ballast_mib) {
    if (ballast_mib == least) continue;
    for (const NamedEvent& event : plan.Events()) {
      suite->Compare({absl::StrCat(event.name, "_", ballast_mib, "MiB_to_", least),
                      SilenceOf(event.name, fewest, ballast_mib),
                      SilenceOf(event.name, fewest, least), Better::kLess,
                      event.event == FailoverEvent::kHotCrash ? kBallastBar : 0});
    }
  }
}

// Whether one would answer `event` in this way without Baton. Clients can be told of a planned one.
bool Answers(const char* without, FailoverEvent event) {
  const bool planned = event == FailoverEvent::kHandoff;
  return without == kReconnect || planned == (without == kDrain);
}

void CompareWith(const char* without, const FailoverPlan& plan, Suite* suite) {
  if (!plan.Wants(without)) return;
  for (const uint32_t ballast_mib : plan.ballast_mib) {
    for (const uint32_t connections : plan.connections) {
      for (const NamedEvent& event : plan.Events()) {
        if (!Answers(without, event.event)) continue;
        suite->Compare({absl::StrCat(NameOf(event.name, connections, ballast_mib), "_to_", without),
                        SilenceOf(event.name, connections, ballast_mib),
                        SilenceOf(without, connections, ballast_mib), Better::kLess});
      }
    }
  }
}

Line LineOf(const FailoverPlan& plan, std::string_view event, const char* title) {
  Line line{title, {}};
  for (const uint32_t connections : plan.connections) {
    line.points.emplace_back(connections, SilenceOf(event, connections, plan.least_ballast()));
  }
  return line;
}

constexpr int kRealtimePriority = 5;

struct Options {
  SuiteOptions suite;
  FailoverOptions failover;
  FailoverPlan plan;
  uint32_t events = 5;
};

class Failovers {
 public:
  explicit Failovers(const Options& options)
      : options_(options), suite_("failover", options.suite) {
    Compare(options_.plan, &suite_);
  }

  absl::Status Run() {
    BATON_RETURN_IF_ERROR(suite_.Run([this](Round& round) { return Measure(round); }));
    return suite_.Report();
  }

 private:
  absl::Status Measure(Round& round) {
    round.Set("realtime_priority", options_.failover.realtime_priority, "");
    using Side = absl::Status (Failovers::*)(uint32_t, Round&);
    constexpr Side kSides[] = {&Failovers::MeasureBaton, &Failovers::MeasureReconnect,
                               &Failovers::MeasureStandby};
    for (const uint32_t connections : options_.plan.connections) {
      // No side is always the first.
      for (size_t i = 0; i < std::size(kSides); ++i) {
        const Side side = kSides[(round.number() + i) % std::size(kSides)];
        BATON_RETURN_IF_ERROR((this->*side)(connections, round));
      }
    }
    return absl::OkStatus();
  }

  absl::Status MeasureBaton(uint32_t connections, Round& round) {
    if (options_.plan.Events().empty()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const auto side, BatonSide::Start(options_.failover, connections));
    for (const uint32_t ballast_mib : options_.plan.ballast_mib) {
      for (const NamedEvent& event : options_.plan.Events()) {
        const std::string name = NameOf(event.name, connections, ballast_mib);
        BATON_RETURN_IF_ERROR(Repeat(
            name, [&] { return side->Measure(event.event, ballast_mib); }, /*baton=*/true, round));
      }
    }
    return side->Finish();
  }

  absl::Status MeasureReconnect(uint32_t connections, Round& round) {
    if (!options_.plan.Wants(kReconnect)) return absl::OkStatus();
    for (const uint32_t ballast_mib : options_.plan.ballast_mib) {
      BATON_ASSIGN_OR_RETURN(const auto side,
                             ReconnectSide::Start(options_.failover, connections, ballast_mib));
      const std::string name = NameOf(kReconnect, connections, ballast_mib);
      BATON_RETURN_IF_ERROR(Repeat(
          name, [&] { return side->Measure(); }, /*baton=*/false, round));
      BATON_RETURN_IF_ERROR(side->Finish());
    }
    return absl::OkStatus();
  }

  absl::Status MeasureStandby(uint32_t connections, Round& round) {
    if (!options_.plan.WantsStandby()) return absl::OkStatus();
    for (const uint32_t ballast_mib : options_.plan.ballast_mib) {
      BATON_ASSIGN_OR_RETURN(const auto side,
                             StandbySide::Start(options_.failover, connections, ballast_mib));
      for (const auto& [name, event] :
           {std::pair(kStandby, StandbyEvent::kCrash), std::pair(kDrain, StandbyEvent::kDrain)}) {
        if (!options_.plan.Wants(name)) continue;
        BATON_RETURN_IF_ERROR(Repeat(
            NameOf(name, connections, ballast_mib),
            [&, event = event] { return side->Measure(event); },
            /*baton=*/false, round));
      }
      BATON_RETURN_IF_ERROR(side->Finish());
    }
    return absl::OkStatus();
  }

  absl::Status Repeat(const std::string& name,
                      const std::function<absl::StatusOr<Silence>()>& measure, bool baton,
                      Round& round) {
    std::vector<Silence> events;
    for (uint32_t i = 0; i < suite_.Scaled(options_.events); ++i) {
      const absl::StatusOr<Silence> silence = measure();
      if (!silence.ok()) {
        return absl::Status(silence.status().code(),
                            absl::StrCat(name, ": ", std::string(silence.status().message())));
      }
      events.push_back(*silence);
    }
    SetFigures(name, events, baton, &round);
    std::fprintf(stderr, "failover: %-28s %10.3f ms\n", name.c_str(),
                 round.Of(name + "_ms").value_or(0));
    return absl::OkStatus();
  }

  const Options options_;
  Suite suite_;
};

// Otherwise the times are those of the scheduler: all parties share a few cores, and a dying
// process keeps one for a millisecond or two while others wait for it.
void ChooseRealtimePriority(FailoverOptions* options) {
  // Soft-RoCE's work is done by threads of the kernel, which have no priority themselves.
  if (options->realtime_priority < 0) {
    options->realtime_priority = options->fabric.device == "soft" ? kRealtimePriority : 0;
  }
  if (options->realtime_priority == 0) return;
  absl::Status permitted;
  std::thread([&] { permitted = UseRealtimePriority(options->realtime_priority); }).join();
  if (permitted.ok()) return;
  options->realtime_priority = 0;
  std::fprintf(stderr, "failover: without real-time priorities, expect longer silences: %s\n",
               std::string(permitted.message()).c_str());
}

absl::Status RunAndReport(Options options) {
  ChooseRealtimePriority(&options.failover);
  // Each has another one to the standby.
  const uint64_t sockets = options.plan.WantsStandby() ? 2 : 1;
  BATON_RETURN_IF_ERROR(RaiseDescriptorLimit(sockets * options.plan.most_connections()));
  return Failovers(options).Run();
}

int Main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "The longest silence that a service's peers see of a planned handoff, a crash or a hang of "
      "its owner, beside what one would do without Baton: connect anew to a warm successor, or go "
      "on "
      "over connections that are made already to a service that stands by.");
  AddSuiteOptions(flags, &options.suite);
  flags.Add("--device", &options.failover.fabric.device, "soft, rdma, or rdma:NAME [soft]");
  flags.Add("--address", &options.failover.fabric.host,
            "IPv4 address that the device has [127.0.0.1]");
  flags.Add("--connections", &options.plan.connections, "numbers of them [1,100,1000,10000]")
      .SplitAtCommas()
      .Within(1, 60'000);
  flags.Add("--mapped-mib", &options.plan.ballast_mib, "memory of the workers' own [0,256]")
      .SplitAtCommas();
  flags.Add("--events", &options.events, "of each kind in each round [5]").Within(1, 1000);
  flags
      .Add("--only", &options.plan.only,
           "handoff, hot_crash, cold_crash, hang, reconnect, standby, drain [all]")
      .SplitAtCommas()
      .OneOf({"handoff", "hot_crash", "cold_crash", "hang", "reconnect", kStandby, kDrain});
  flags.Add("--active", &options.failover.active, "connections that carry load [8]")
      .Within(1, 60'000);
  flags.Add("--rate", &options.failover.rate, "requests per second over those [4000]");
  flags.Add("--hang-timeout-ms", &options.failover.hang_timeout_ms,
            "an owner silent for so long is killed [250]");
  flags
      .Add("--realtime-priority", &options.failover.realtime_priority,
           "of serving threads and of the peer, with Baton and without; 0: none [5 on the "
           "soft device, 0 on others]")
      .Within(0, 99);
  flags.Add("--bin", &options.failover.binary_directory, "where the programs are [$BATON_BIN]");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  return ExitCode("failover", RunAndReport(options));
}

}  // namespace

bool FailoverPlan::Wants(std::string_view event) const {
  return only.empty() || std::find(only.begin(), only.end(), event) != only.end();
}

std::vector<NamedEvent> FailoverPlan::Events() const {
  std::vector<NamedEvent> events;
  for (const NamedEvent& event : kEvents) {
    if (Wants(event.name)) events.push_back(event);
  }
  return events;
}

uint32_t FailoverPlan::fewest_connections() const {
  return *std::min_element(connections.begin(), connections.end());
}
uint32_t FailoverPlan::most_connections() const {
  return *std::max_element(connections.begin(), connections.end());
}
uint32_t FailoverPlan::least_ballast() const {
  return *std::min_element(ballast_mib.begin(), ballast_mib.end());
}

std::string NameOf(std::string_view event, uint32_t connections, uint32_t ballast_mib) {
  std::string name = absl::StrCat(std::string(event), "_", connections);
  if (ballast_mib != 0) absl::StrAppend(&name, "_", ballast_mib, "MiB");
  return name;
}

void SetFigures(const std::string& name, const std::vector<Silence>& events, bool baton,
                Round* round) {
  for (const Part& part : kParts) {
    if (part.baton_only && !baton) continue;
    std::vector<double> values;
    for (const Silence& event : events) values.push_back(event.*part.value);
    round->Set(name + part.suffix, Quantile(values, 0.5), "ms");
  }
  double longest = 0;
  for (const Silence& event : events) longest = std::max(longest, event.longest);
  round->Set(name + "_longest_ms", longest, "ms", Over::kLargest);
}

void Compare(const FailoverPlan& plan, Suite* suite) {
  CompareNumbers(plan, suite);
  CompareBallast(plan, suite);
  for (const NamedBaseline& baseline : kBaselines) CompareWith(baseline.name, plan, suite);
  Plot plot{"blackout", "Longest silence at the peer", "connections", "ms to the first reply", {}};
  for (const NamedEvent& event : plan.Events()) {
    plot.lines.push_back(LineOf(plan, event.name, event.title));
  }
  for (const NamedBaseline& baseline : kBaselines) {
    if (plan.Wants(baseline.name)) {
      plot.lines.push_back(LineOf(plan, baseline.name, baseline.title));
    }
  }
  suite->Draw(std::move(plot));
}

}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
