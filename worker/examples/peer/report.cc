#include "worker/examples/peer/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/examples/common/json_line.h"

namespace baton::peer {
namespace {

double Microseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

template <typename Counts>
std::string VersionsJson(const Counts& counts) {
  examples::JsonLine json;
  for (uint32_t version = 1; version < kVersions; ++version) {
    if (counts[version] != 0) json.Count(absl::StrCat(version), counts[version]);
  }
  return json.Finish();
}

std::string LatencyJson(const LatencyHistogram& latency) {
  return examples::JsonLine()
      .Number("p50", Microseconds(latency.Quantile(0.5)))
      .Number("p99", Microseconds(latency.Quantile(0.99)))
      .Number("p99.9", Microseconds(latency.Quantile(0.999)))
      .Number("max", Microseconds(latency.max()))
      .Finish();
}

void AddDefects(const Defects& defects, examples::JsonLine* json) {
  json->Count("lost", defects.lost)
      .Count("duplicated", defects.duplicated)
      .Count("reordered", defects.reordered)
      .Count("corrupt", defects.corrupt)
      .Count("wrong_total", defects.wrong_total);
}

std::string PerConnectionJson(const Summary& summary) {
  std::string list = "[";
  for (size_t i = 0; i < summary.per_connection.size(); ++i) {
    const ConnectionSummary& one = summary.per_connection[i];
    examples::JsonLine json;
    json.Count("index", i).Count("messages", one.messages);
    json.Number("max_silence_us", Microseconds(one.max_silence));
    json.Raw("latency_us", LatencyJson(one.latency));
    AddDefects(one.defects, &json);
    absl::StrAppend(&list, i == 0 ? "" : ",", json.Finish());
  }
  return list + "]";
}

}  // namespace

bool IsClean(const Summary& summary, bool reconnect) {
  return summary.defects.Sum() == 0 && summary.established == summary.connections &&
         (reconnect || summary.disconnects == 0);
}

std::string WindowJson(std::string_view name, const WindowSummary& window) {
  return examples::JsonLine()
      .Text("window", name)
      .Number("max_silence_us", Microseconds(window.max_silence))
      .Count("worst_connection", window.worst_connection)
      .Count("messages", window.messages)
      .Count("connections_with_reply", window.connections_with_reply)
      .Count("disconnects", window.disconnects)
      .Raw("last_versions", VersionsJson(window.last_versions))
      .Number("seconds", static_cast<double>(window.nanoseconds) * 1e-9)
      .Finish();
}

std::string SummaryJson(const Summary& summary, bool clean) {
  examples::JsonLine json;
  json.Flag("final", true).Flag("ok", clean);
  json.Count("connections", summary.connections).Count("established", summary.established);
  json.Count("sent", summary.sent).Count("messages", summary.messages);
  AddDefects(summary.defects, &json);
  json.Count("disconnects", summary.disconnects)
      .Count("connect_failures", summary.connect_failures)
      .Count("reconnects", summary.reconnects)
      .Count("retried", summary.retried)
      .Count("throttled", summary.throttled)
      .Number("max_silence_us", Microseconds(summary.max_silence))
      .Raw("versions", VersionsJson(summary.versions))
      .Raw("latency_us", LatencyJson(summary.latency))
      .Raw("per_connection", PerConnectionJson(summary));
  return json.Finish();
}

std::string SummaryText(const Summary& summary, bool clean) {
  const LatencyHistogram& latency = summary.latency;
  return absl::StrFormat(
      "%s: %d messages over %d connections (%d were made)\n"
      "lost %d, duplicated %d, reordered %d, corrupt %d, wrong totals %d, disconnects %d\n"
      "latency p50 %.0f us, p99 %.0f us, p99.9 %.0f us, max %.0f us; longest silence %.0f us",
      clean ? "clean" : "NOT CLEAN", summary.messages, summary.connections, summary.established,
      summary.defects.lost, summary.defects.duplicated, summary.defects.reordered,
      summary.defects.corrupt, summary.defects.wrong_total, summary.disconnects,
      Microseconds(latency.Quantile(0.5)), Microseconds(latency.Quantile(0.99)),
      Microseconds(latency.Quantile(0.999)), Microseconds(latency.max()),
      Microseconds(summary.max_silence));
}

}  // namespace baton::peer
