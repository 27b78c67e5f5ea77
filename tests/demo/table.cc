// The table that the demonstration prints at its end.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/demo/numbers.h"
#include "tests/demo/report.h"

namespace baton::demo {
namespace {

constexpr size_t kColumns = 79;

void AddLine(const ActResult& act, EventKind kind, size_t wanted, std::string* table) {
  const BlackoutStatistics statistics = Summarize(act.events, kind);
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

void AddCounts(const DemoResult& result, std::string* table) {
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

std::string ToTable(const DemoResult& result) {
  std::string table = absl::StrFormat(
      "The longest silence: a request was open on some connection, and no reply came\n"
      "%-34s %13s %12s %12s\n",
      "", "as expected", "median, ms", "longest, ms");
  AddEvents(result, &table);
  AddRatios(result, &table);
  AddCounts(result, &table);
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
