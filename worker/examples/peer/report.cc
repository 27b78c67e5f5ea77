#include "worker/examples/peer/report.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::peer {
namespace {

using nlohmann::ordered_json;

double Microseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

template <typename Counts>
ordered_json VersionsJson(const Counts& counts) {
  ordered_json json = ordered_json::object();
  for (uint32_t version = 1; version < kVersions; ++version) {
    if (counts[version] != 0) json[absl::StrCat(version)] = counts[version];
  }
  return json;
}

ordered_json LatencyJson(const LatencyHistogram& latency) {
  return {{"p50", Microseconds(latency.Quantile(0.5))},
          {"p99", Microseconds(latency.Quantile(0.99))},
          {"p99.9", Microseconds(latency.Quantile(0.999))},
          {"max", Microseconds(latency.max())}};
}

void AddDefects(const Defects& defects, ordered_json* json) {
  json->update({{"lost", defects.lost},
                {"duplicated", defects.duplicated},
                {"reordered", defects.reordered},
                {"corrupt", defects.corrupt},
                {"wrong_total", defects.wrong_total}});
}

ordered_json PerConnectionJson(const Summary& summary) {
  ordered_json list = ordered_json::array();
  for (const ConnectionSummary& one : summary.per_connection) {
    ordered_json json = {{"index", list.size()},
                         {"messages", one.messages},
                         {"max_silence_us", Microseconds(one.max_silence)},
                         {"latency_us", LatencyJson(one.latency)}};
    AddDefects(one.defects, &json);
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

bool IsClean(const Summary& summary, bool reconnect) {
  return summary.defects.Sum() == 0 && summary.established == summary.connections &&
         (reconnect || summary.disconnects == 0);
}

ordered_json WindowJson(std::string_view name, const WindowSummary& window) {
  return {{"window", name},
          {"max_silence_us", Microseconds(window.max_silence)},
          {"worst_connection", window.worst_connection},
          {"messages", window.messages},
          {"connections_with_reply", window.connections_with_reply},
          {"disconnects", window.disconnects},
          {"spares", window.spares},
          {"last_versions", VersionsJson(window.last_versions)},
          {"seconds", static_cast<double>(window.nanoseconds) * 1e-9}};
}

ordered_json SummaryJson(const Summary& summary, bool clean) {
  ordered_json json = {{"final", true},
                       {"ok", clean},
                       {"connections", summary.connections},
                       {"established", summary.established},
                       {"sent", summary.sent},
                       {"messages", summary.messages}};
  AddDefects(summary.defects, &json);
  json.update({{"disconnects", summary.disconnects},
               {"connect_failures", summary.connect_failures},
               {"reconnects", summary.reconnects},
               {"retried", summary.retried},
               {"throttled", summary.throttled},
               {"max_silence_us", Microseconds(summary.max_silence)},
               {"versions", VersionsJson(summary.versions)},
               {"latency_us", LatencyJson(summary.latency)},
               {"per_connection", PerConnectionJson(summary)}});
  return json;
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
