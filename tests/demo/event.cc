#include "tests/demo/event.h"

#include <cstdio>
#include <optional>

#include "tests/harness/quantile.h"

namespace baton::demo {

const EventLook& LookOf(EventKind kind) {
  // In the order of EventKind.
  static constexpr EventLook kLooks[] = {
      {"quiet", "nothing, for comparison", "#797979"},
      {"handoff", "planned handoff to a standby", "#2e9e4f"},
      {"upgrade_start", "next version starts beside it", "#797979"},
      {"upgrade", "upgrade to another version", "#1a9bb0"},
      {"bad_upgrade", "faulty upgrade, undone", "#d65fa8"},
      {"crash_hot", "process killed, standby ready", "#d9484a"},
      {"hang", "process hangs, standby ready", "#a3705f"},
      {"crash_cold", "process killed, no standby", "#9a6fd0"},
      {"control_kill", "control process killed", "#d9822b"},
      {"keeper_kill", "keeper killed", "#3f9e8c"},
      {"baton_upgrade", "Baton upgraded", "#8a6d3b"},
      {"batond_kill", "batond killed", "#5a7fd6"},
      {"poison", "message that kills its readers", "#7a8f1f"},
      {"baseline", "process killed", "#d9484a"},
      {"standby_drain", "restart, clients told before", "#2e9e4f"},
      {"standby_crash", "process killed", "#d9484a"},
  };
  return kLooks[static_cast<size_t>(kind)];
}

SilenceStatistics Summarize(const std::vector<Event>& events, EventKind kind) {
  SilenceStatistics statistics;
  std::vector<double> silences;
  for (const Event& event : events) {
    if (event.kind != kind) continue;
    ++statistics.count;
    statistics.ok += event.problem.empty() ? 1 : 0;
    silences.push_back(event.silence_us);
  }
  statistics.p50_us = Quantile(silences, 0.5).value_or(0);
  statistics.p99_us = Quantile(silences, 0.99).value_or(0);
  statistics.max_us = Quantile(silences, 1).value_or(0);
  return statistics;
}

namespace {

class PlainProgress final : public Progress {
 public:
  void BeginAct(const std::string& title, bool, const std::string&) override {
    std::fprintf(stderr, "%s:\n", title.c_str());
    kind_.reset();
  }
  void EndAct(const Counters&) override {}
  void Begin(EventKind kind) override {
    if (kind_ != kind) std::fprintf(stderr, " %s:\n", EventTitle(kind));
    kind_ = kind;
  }
  void End(const Event& event) override {
    std::fprintf(stderr, "  %-13s %9.0f us  %s\n", EventKindName(event.kind), event.silence_us,
                 event.problem.empty() ? "ok" : event.problem.c_str());
  }
  void Note(const std::string& line) override { std::fprintf(stderr, "%s\n", line.c_str()); }
  void Yield() override {}

 private:
  std::optional<EventKind> kind_;
};

}  // namespace

std::unique_ptr<Progress> MakePlainProgress() { return std::make_unique<PlainProgress>(); }

}  // namespace baton::demo
