#include "tests/demo/report.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/version.h"

namespace baton::demo {
namespace {

using nlohmann::ordered_json;

constexpr std::initializer_list<const char*> kDefects = {"lost", "duplicated", "reordered",
                                                         "corrupt", "wrong_total"};

bool IsActOk(const ActResult& act) {
  if (!act.status.ok() || !act.peer_finished || !act.peer.Flag("ok")) return false;
  for (const Event& event : act.events) {
    if (!event.problem.empty()) return false;
  }
  return true;
}

// Takes a BlackoutStatistics or an InsideBlackout.
template <typename Quantiles>
ordered_json MicrosecondsJson(const Quantiles& quantiles) {
  return {{"p50", quantiles.p50_us}, {"p99", quantiles.p99_us}, {"max", quantiles.max_us}};
}

void AddCounts(const ActResult& act, std::initializer_list<const char*> names, ordered_json* json) {
  for (const char* const name : names) (*json)[name] = act.peer.Count(name);
}

ordered_json EventJson(const ActResult& act, EventKind kind) {
  const BlackoutStatistics statistics = Summarize(act.events, kind);
  return {{"count", statistics.count},
          {"ok", statistics.ok},
          {"blackout_us", MicrosecondsJson(statistics)}};
}

// Adds what both services without Baton have besides their events.
void AddConditions(const ActResult& act, ordered_json* json) {
  (*json)["quiet_us"] = MicrosecondsJson(Summarize(act.events, EventKind::kQuiet));
  (*json)["cores_of_others"] = act.cores_of_others;
  if (!act.peer_finished) return;
  AddCounts(act, {"messages", "disconnects", "retried"}, json);
  AddCounts(act, kDefects, json);
}

ordered_json BaselineJson(const ActResult& act) {
  const BlackoutStatistics statistics = Summarize(act.events, EventKind::kBaseline);
  ordered_json json = {
      {"count", statistics.count}, {"ok", statistics.ok}, {"gap_us", MicrosecondsJson(statistics)}};
  AddConditions(act, &json);
  return json;
}

ordered_json StandbyJson(const ActResult& act) {
  ordered_json json = {{"drain", EventJson(act, EventKind::kStandbyDrain)},
                       {"crash", EventJson(act, EventKind::kStandbyCrash)}};
  AddConditions(act, &json);
  return json;
}

bool WasAllRun(const DemoResult& result) {
  const auto all = result.options.Wanted();
  return std::all_of(all.begin(), all.end(), [&](const auto& wanted) {
    return Summarize(result.baton.events, wanted.first).count == wanted.second;
  });
}

// 0 when either is missing.
double MedianRatio(const ActResult& without, EventKind event, const ActResult& with,
                   EventKind kind) {
  const double median = Summarize(with.events, kind).p50_us;
  return median > 0 ? Summarize(without.events, event).p50_us / median : 0;
}

}  // namespace

bool IsBatonOk(const DemoResult& result) {
  if (!IsActOk(result.baton)) return false;
  for (const auto& [kind, wanted] : result.options.Wanted()) {
    if (Summarize(result.baton.events, kind).ok != wanted) return false;
  }
  return true;
}

bool IsOk(const DemoResult& result) {
  if (!IsBatonOk(result)) return false;
  const uint32_t runs = result.options.baseline_runs;
  return runs == 0 || (IsActOk(result.baseline) && IsActOk(result.standby) &&
                       Summarize(result.baseline.events, EventKind::kBaseline).ok == runs &&
                       Summarize(result.standby.events, EventKind::kStandbyDrain).ok == runs &&
                       Summarize(result.standby.events, EventKind::kStandbyCrash).ok == runs);
}

std::string ToJson(const DemoResult& result) {
  const ActResult& act = result.baton;
  ordered_json json = {{"ok", IsOk(result)},
                       {"all_run", WasAllRun(result)},
                       {"release", kRelease},
                       {"mode", ModeName(result.options.mode)},
                       {"device", result.options.fabric.device},
                       {"connections", result.options.connections},
                       {"shards", result.options.shards},
                       {"rate", act.rate},
                       {"cores_used", act.cores_used},
                       {"realtime_priority", result.options.realtime_priority},
                       {"cores_of_others", act.cores_of_others},
                       {"seconds", result.seconds}};
  if (act.peer_finished) {
    AddCounts(act, {"messages"}, &json);
    AddCounts(act, kDefects, &json);
    AddCounts(act, {"disconnects"}, &json);
  }
  for (const auto& [kind, wanted] : result.options.Wanted()) {
    json[EventKindName(kind)] = EventJson(act, kind);
  }
  // Baton's own histograms know it without the wire and the peer.
  json["inside_us"] = {{"handoff", MicrosecondsJson(act.handoff_inside)},
                       {"failover", MicrosecondsJson(act.failover_inside)}};
  // Not an event: how silent the connections are when nothing happens, measured before each.
  json["quiet_us"] = MicrosecondsJson(Summarize(act.events, EventKind::kQuiet));
  // Nor this: the start of each upgrade's program, up to the handover.
  json["upgrade_start_us"] = MicrosecondsJson(Summarize(act.events, EventKind::kUpgradeStart));
  if (result.options.baseline_runs != 0) {
    json["baseline"] = BaselineJson(result.baseline);
    json["standby"] = StandbyJson(result.standby);
  }
  for (const ActResult* one : {&act, &result.baseline, &result.standby}) {
    if (!one->status.ok()) json["problem"] = std::string(one->status.message());
  }
  json["sentence"] = ToSentence(result);
  return json.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

double RatioToBaseline(const DemoResult& result, EventKind kind) {
  return MedianRatio(result.baseline, EventKind::kBaseline, result.baton, kind);
}

double RatioToStandby(const DemoResult& result, EventKind kind) {
  const bool crash = kind == EventKind::kCrashHot;
  return MedianRatio(result.standby, crash ? EventKind::kStandbyCrash : EventKind::kStandbyDrain,
                     result.baton, kind);
}

bool HasRequiredRatio(const DemoResult& result) {
  for (const EventKind kind : {EventKind::kHandoff, EventKind::kUpgrade, EventKind::kCrashHot}) {
    if (Summarize(result.baton.events, kind).count == 0) continue;
    const double ratio =
        kind == EventKind::kCrashHot ? RatioToStandby(result, kind) : RatioToBaseline(result, kind);
    if (ratio < result.options.required_ratio) return false;
  }
  return true;
}

}  // namespace baton::demo
