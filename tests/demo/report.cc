#include "tests/demo/report.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/version.h"

namespace baton::demo {
namespace {

using nlohmann::ordered_json;

constexpr std::initializer_list<const char*> kDefects = {"lost", "duplicated", "reordered",
                                                         "corrupt", "wrong_total"};

struct Row {
  EventKind kind;
  uint32_t wanted;
  const char* title;
};

std::vector<Row> Rows(const DemoOptions& options) {
  return {{EventKind::kHandoff, options.handoffs, "planned handoff"},
          {EventKind::kUpgrade, options.upgrades, "upgrade"},
          {EventKind::kBadUpgrade, options.bad_upgrades, "bad upgrade, undone"},
          {EventKind::kCrashHot, options.crashes, "crash, hot standby"},
          {EventKind::kHang, options.hangs, "hang, hot standby"},
          {EventKind::kCrashCold, options.cold_crashes, "crash, no standby"},
          {EventKind::kControlKill, options.control_kills, "control killed"},
          {EventKind::kPoison, options.poisons, "a message that kills"}};
}

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
  const std::vector<Row> rows = Rows(result.options);
  return std::all_of(rows.begin(), rows.end(), [&](const Row& row) {
    return Summarize(result.baton.events, row.kind).count == row.wanted;
  });
}

// 0 when either is missing.
double MedianRatio(const ActResult& without, EventKind event, const ActResult& with,
                   EventKind kind) {
  const double median = Summarize(with.events, kind).p50_us;
  return median > 0 ? Summarize(without.events, event).p50_us / median : 0;
}

std::string TableLine(const char* title, uint32_t wanted, const BlackoutStatistics& statistics) {
  return absl::StrFormat("%-26s %5d %5d %12.0f %12.0f\n", title, wanted, statistics.ok,
                         statistics.p50_us, statistics.max_us);
}

}  // namespace

bool IsOk(const DemoResult& result) {
  if (!IsActOk(result.baton)) return false;
  for (const Row& row : Rows(result.options)) {
    if (Summarize(result.baton.events, row.kind).ok != row.wanted) return false;
  }
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
  for (const Row& row : Rows(result.options)) {
    json[EventKindName(row.kind)] = EventJson(act, row.kind);
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

std::string ToTable(const DemoResult& result) {
  const ActResult& act = result.baton;
  std::string table = absl::StrFormat(
      "Longest silence that a peer saw, workers %s, in microseconds\n%-26s %5s %5s %12s %12s\n",
      ModeName(result.options.mode), "", "done", "ok", "p50", "max");
  const BlackoutStatistics quiet = Summarize(act.events, EventKind::kQuiet);
  table += TableLine("nothing, before each", static_cast<uint32_t>(quiet.count), quiet);
  const BlackoutStatistics start = Summarize(act.events, EventKind::kUpgradeStart);
  table += TableLine("a program starts beside it", static_cast<uint32_t>(start.count), start);
  for (const Row& row : Rows(result.options)) {
    table += TableLine(row.title, row.wanted, Summarize(act.events, row.kind));
  }
  if (result.options.baseline_runs != 0) {
    const uint32_t runs = result.options.baseline_runs;
    table += "Without Baton, a warm standby to which clients have connections, the fairest:\n";
    table += TableLine("restart, clients are told", runs,
                       Summarize(result.standby.events, EventKind::kStandbyDrain));
    table += TableLine("crash, clients notice", runs,
                       Summarize(result.standby.events, EventKind::kStandbyCrash));
    absl::StrAppendFormat(
        &table, "Its median over that of Baton: handoff %.2f, upgrade %.2f, hot crash %.1f\n",
        RatioToStandby(result, EventKind::kHandoff), RatioToStandby(result, EventKind::kUpgrade),
        RatioToStandby(result, EventKind::kCrashHot));
    table += "Without Baton, a warm successor to which clients connect anew, the simplest:\n";
    table += TableLine("crash, clients reconnect", runs,
                       Summarize(result.baseline.events, EventKind::kBaseline));
    absl::StrAppendFormat(
        &table, "Its median over that of Baton: handoff %.1f, upgrade %.1f, hot crash %.1f\n",
        RatioToBaseline(result, EventKind::kHandoff), RatioToBaseline(result, EventKind::kUpgrade),
        RatioToBaseline(result, EventKind::kCrashHot));
  }
  if (act.peer_finished) {
    absl::StrAppendFormat(
        &table,
        "With Baton: %d connections, %d messages; lost %d, duplicated %d, reordered %d, corrupt "
        "%d, wrong totals %d, disconnects %d\n",
        result.options.connections, act.peer.Count("messages"), act.peer.Count("lost"),
        act.peer.Count("duplicated"), act.peer.Count("reordered"), act.peer.Count("corrupt"),
        act.peer.Count("wrong_total"), act.peer.Count("disconnects"));
  }
  if (result.baseline.peer_finished) {
    absl::StrAppendFormat(
        &table, "Clients that reconnect: %d disconnects, %d requests had to be sent again\n",
        result.baseline.peer.Count("disconnects"), result.baseline.peer.Count("retried"));
  }
  absl::StrAppendFormat(
      &table,
      "%d messages per second used %.1f cores; other programs used %.1f meanwhile: what they "
      "take makes every time longer\n",
      act.rate, act.cores_used, act.cores_of_others);
  for (const ActResult* one : {&act, &result.baseline, &result.standby}) {
    if (!one->status.ok())
      absl::StrAppend(&table, "FAILED: ", std::string(one->status.message()), "\n");
  }
  if (!HasRequiredRatio(result)) {
    absl::StrAppendFormat(&table, "the required ratio is %.1f\n", result.options.required_ratio);
    return table + "NOT OK\n";
  }
  return table + (IsOk(result) ? "OK\n" : "NOT OK\n");
}

}  // namespace baton::demo
