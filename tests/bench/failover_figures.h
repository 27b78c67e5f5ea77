// What the failover suite measures, what the figures are called, and what is compared with what.
#ifndef TESTS_BENCH_FAILOVER_FIGURES_H_
#define TESTS_BENCH_FAILOVER_FIGURES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/failover_side.h"
#include "tests/bench/suite.h"

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
void SetFigures(const std::string& name, const std::vector<Blackout>& events, bool baton,
                Round* round);

// Adds the ratios, and the plot.
void Compare(const FailoverPlan& plan, Suite* suite);

}  // namespace baton::bench

#endif  // TESTS_BENCH_FAILOVER_FIGURES_H_
