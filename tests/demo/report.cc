#include "tests/demo/report.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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

// Takes a SilenceStatistics or an InsideBlackout.
template <typename Quantiles>
ordered_json MicrosecondsJson(const Quantiles& quantiles) {
  return {{"p50", quantiles.p50_us}, {"p99", quantiles.p99_us}, {"max", quantiles.max_us}};
}

void AddCounts(const ActResult& act, std::initializer_list<const char*> names, ordered_json* json) {
  for (const char* const name : names) (*json)[name] = act.peer.Count(name);
}

ordered_json EventJson(const ActResult& act, EventKind kind) {
  const SilenceStatistics statistics = Summarize(act.events, kind);
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
  const SilenceStatistics statistics = Summarize(act.events, EventKind::kBaseline);
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

// Returns "78 times", or of a demonstration that failed "12 of 78 times".
std::string Times(const DemoResult& result) {
  size_t ok = 0, wanted = 0;
  for (const auto& [kind, count] : result.options.Wanted()) {
    ok += Summarize(result.baton.events, kind).ok;
    wanted += count;
  }
  const char* const times = wanted == 1 ? " time" : " times";
  return ok == wanted ? absl::StrCat(wanted, times) : absl::StrCat(ok, " of ", wanted, times);
}

std::string Silences(const DemoResult& result) {
  std::vector<std::string> silences;
  for (const auto& [kind, where] : {std::pair(EventKind::kHandoff, "at a planned handoff"),
                                    {EventKind::kUpgrade, "at an upgrade"},
                                    {EventKind::kCrashHot, "at a kill with a standby ready"},
                                    {EventKind::kCrashCold, "at a kill without one"},
                                    {EventKind::kHang, "at a hang"},
                                    {EventKind::kDriverKill, "at a kill of the driver"},
                                    {EventKind::kKeeperKill, "at a kill of the keeper"},
                                    {EventKind::kBatonUpgrade, "at an upgrade of Baton"},
                                    {EventKind::kBatondKill, "at a kill of batond"}}) {
    const SilenceStatistics statistics = Summarize(result.baton.events, kind);
    if (statistics.count == 0) continue;
    silences.push_back(absl::StrCat(Milliseconds(statistics.max_us), " ", where));
  }
  return silences.empty() ? "" : "; the longest silence was " + absl::StrJoin(silences, ", ");
}

// Without Baton.
std::string Comparison(const DemoResult& result) {
  const ActResult& act = result.baseline;
  const SilenceStatistics kills = Summarize(act.events, EventKind::kBaseline);
  if (kills.count == 0 || !act.peer_finished) return "";
  return absl::StrFormat(
      "; without Baton, %d %s ended %d connections and made silences of up to %s", kills.count,
      kills.count == 1 ? "kill" : "kills", act.peer.Count("disconnects"),
      Milliseconds(kills.max_us));
}

// Returns what the peer counted, as far as it is not as it should be; "" when all is.
std::string Defects(const harness::JsonObject& peer) {
  std::vector<std::string> defects;
  for (const auto& [name, text] : {std::pair("lost", "lost"),
                                   {"duplicated", "answered twice"},
                                   {"reordered", "out of order"},
                                   {"corrupt", "corrupt"},
                                   {"wrong_total", "with a wrong total"},
                                   {"disconnects", "peers disconnected"}}) {
    const uint64_t count = peer.Count(name);
    if (count > 0) defects.push_back(absl::StrCat(Grouped(count), " ", text));
  }
  return absl::StrJoin(defects, ", ");
}

std::string FirstProblem(const ActResult& act) {
  const auto found = std::find_if(act.events.begin(), act.events.end(),
                                  [](const Event& event) { return !event.problem.empty(); });
  if (found != act.events.end()) {
    return absl::StrCat(EventTitle(found->kind), ": ", found->problem);
  }
  return std::string(act.status.message());
}

std::string WhatFailed(const DemoResult& result) {
  const ActResult& act = result.baton;
  std::string text = absl::StrFormat(
      "It FAILED: %s the service was replaced, killed or stopped under %d connections as expected",
      Times(result), result.options.connections);
  if (act.peer_finished) {
    const std::string defects = Defects(act.peer);
    absl::StrAppend(&text, "; ", Grouped(act.peer.Count("messages")), " messages",
                    defects.empty() ? ", none lost" : ": " + defects);
  } else {
    text += "; what became of the messages is not known";
  }
  const std::string problem = FirstProblem(act);
  if (!problem.empty()) absl::StrAppend(&text, "; first problem: ", problem);
  return text + ".";
}

constexpr size_t kColumns = 79;

void AddLine(const ActResult& act, EventKind kind, size_t wanted, std::string* table) {
  const SilenceStatistics statistics = Summarize(act.events, kind);
  const auto milliseconds = [&](double us) -> std::string {
    return statistics.count == 0 ? "-" : absl::StrFormat("%.2f", us / 1000);
  };
  absl::StrAppendFormat(table, "  %-32s %5d of %-4d %12s %12s\n", EventTitle(kind), statistics.ok,
                        wanted, milliseconds(statistics.p50_us), milliseconds(statistics.max_us));
}

// Adds a line for an event that nobody asked for and that comes with the others.
void AddLine(const ActResult& act, EventKind kind, std::string* table) {
  AddLine(act, kind, Summarize(act.events, kind).count, table);
}

void AddEvents(const DemoResult& result, std::string* table) {
  const ActResult& act = result.baton;
  absl::StrAppend(table, "With Baton, ", ModeName(result.options.mode),
                  " workers: connections live on\n");
  AddLine(act, EventKind::kQuiet, table);
  AddLine(act, EventKind::kUpgradeStart, table);
  for (const auto& [kind, wanted] : result.options.Wanted()) AddLine(act, kind, wanted, table);
  const uint32_t runs = result.options.baseline_runs;
  if (runs == 0) return;
  *table += "Without Baton, each client has a second connection, to a warm standby\n";
  AddLine(result.standby, EventKind::kStandbyDrain, runs, table);
  AddLine(result.standby, EventKind::kStandbyCrash, runs, table);
  *table += "Without Baton, clients reconnect, to a warm successor\n";
  AddLine(result.baseline, EventKind::kBaseline, runs, table);
}

std::string RatioText(double ratio) {
  if (ratio == 0) return "-";  // one of both was not measured
  return absl::StrFormat("%.*f", ratio < 10 ? 2 : 1, ratio);
}

void AddRatioLine(const DemoResult& result, const char* title,
                  double (*ratio)(const DemoResult&, EventKind), std::string* table) {
  absl::StrAppendFormat(table, "  %-32s %13s %12s %12s\n", title,
                        RatioText(ratio(result, EventKind::kHandoff)),
                        RatioText(ratio(result, EventKind::kUpgrade)),
                        RatioText(ratio(result, EventKind::kCrashHot)));
}

void AddRatios(const DemoResult& result, std::string* table) {
  if (result.options.baseline_runs == 0) return;
  absl::StrAppendFormat(table, "\n%-34s %13s %12s %12s\n", "Median without Baton / median with it",
                        "handoff", "upgrade", "kill");
  AddRatioLine(result, "clients with a second connection", RatioToStandby, table);
  AddRatioLine(result, "clients that reconnect", RatioToBaseline, table);
}

// Breaks a line between words, so that terminals do not break it within them.
std::string Wrapped(const std::string& text) {
  std::string lines;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > 0 && column + 1 + word.size() > kColumns) {
      lines += '\n';
      column = 0;
    }
    absl::StrAppend(&lines, column > 0 ? " " : "", word);
    column += word.size() + (column > 0 ? 1 : 0);
  }
  return lines + "\n";
}

void AddCountRows(const DemoResult& result, std::string* table) {
  *table += '\n';
  const harness::JsonObject& peer = result.baton.peer;
  if (result.baton.peer_finished) {
    *table += Wrapped(absl::StrFormat(
        "With Baton: %d connections, %s messages; lost %d, duplicated %d, reordered %d, corrupt "
        "%d, wrong totals %d, disconnects %d",
        result.options.connections, Grouped(peer.Count("messages")), peer.Count("lost"),
        peer.Count("duplicated"), peer.Count("reordered"), peer.Count("corrupt"),
        peer.Count("wrong_total"), peer.Count("disconnects")));
  }
  if (result.baseline.peer_finished) {
    *table += Wrapped(absl::StrFormat(
        "Clients that reconnect: %d disconnects, %d requests had to be sent again",
        result.baseline.peer.Count("disconnects"), result.baseline.peer.Count("retried")));
  }
  *table += Wrapped(absl::StrFormat(
      "%s messages per second used %.1f cores; other programs used %.1f cores, which makes every "
      "silence longer",
      Grouped(result.baton.rate), result.baton.cores_used, result.baton.cores_of_others));
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

std::string ToSentence(const DemoResult& result) {
  if (!IsBatonOk(result)) return WhatFailed(result);
  return absl::StrCat(Times(result), " the service was replaced, killed or stopped under ",
                      result.options.connections,
                      " connections: ", Grouped(result.baton.peer.Count("messages")),
                      " messages, none lost, none twice, none out of order, no peer disconnected",
                      Silences(result), Comparison(result), ".");
}

std::string ToTable(const DemoResult& result) {
  std::string table = absl::StrFormat(
      "The longest silence: a request was open on some connection, and no reply came\n"
      "%-34s %13s %12s %12s\n",
      "", "as expected", "median, ms", "longest, ms");
  AddEvents(result, &table);
  AddRatios(result, &table);
  AddCountRows(result, &table);
  for (const ActResult* one : {&result.baton, &result.baseline, &result.standby}) {
    if (!one->status.ok())
      absl::StrAppend(&table, "FAILED: ", std::string(one->status.message()), "\n");
  }
  const bool ratio = HasRequiredRatio(result);
  if (!ratio) {
    absl::StrAppendFormat(&table, "The required ratio is %.1f.\n", result.options.required_ratio);
  }
  absl::StrAppend(&table, "\n", Wrapped(ToSentence(result)));
  return table + (ratio && IsOk(result) ? "OK\n" : "NOT OK\n");
}

}  // namespace baton::demo
