#include "supervisor/cli/format.h"

#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/util/json_util.h"
#include "lib/text/text.h"

namespace baton {
namespace {

// "WORKER_STATE_READY" as "ready".
std::string Short(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return "unknown";
  return absl::AsciiStrToLower(name.substr(prefix.size()));
}

}  // namespace

std::string FormatDuration(double seconds) {
  if (seconds < 1) return absl::StrFormat("%.0fms", seconds * 1000);
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 60) return absl::StrCat(whole, "s");
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole / 3600 % 24);
}

std::string FormatAgo(double seconds) { return absl::StrCat(FormatDuration(seconds), " ago"); }

std::string FormatMicroseconds(double us) {
  if (us < 1000) return absl::StrFormat("%.0fus", us);
  if (us < 1e6) return absl::StrFormat("%.1fms", us / 1e3);
  return absl::StrFormat("%.1fs", us / 1e6);
}

std::string FormatBytes(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value == static_cast<double>(static_cast<uint64_t>(value));
  return whole ? absl::StrFormat("%.0f%s", value, units[unit])
               : absl::StrFormat("%.1f%s", value, units[unit]);
}

std::string FormatTime(int64_t unix_micros) { return UtcTime(unix_micros); }

std::string FormatSeconds(int64_t unix_micros) {
  const std::string time = UtcTime(unix_micros);
  return absl::StrCat(time.substr(0, time.find('.')), "Z");
}

std::string FormatBlackout(const v1::BlackoutSummary& summary) {
  if (summary.count() == 0) return "none yet";
  if (summary.count() == 1) return absl::StrCat("once, ", FormatMicroseconds(summary.max_us()));
  return absl::StrCat(summary.count(), " times, p50 ", FormatMicroseconds(summary.p50_us()),
                      ", p99 ", FormatMicroseconds(summary.p99_us()), ", max ",
                      FormatMicroseconds(summary.max_us()));
}

std::string FormatState(v1::WorkerState state) {
  return Short(v1::WorkerState_Name(state), "WORKER_STATE_");
}

std::string FormatState(v1::ConnectionState state) {
  return Short(v1::ConnectionState_Name(state), "CONNECTION_STATE_");
}

std::string FormatState(v1::UpgradePhase phase) {
  return absl::StrReplaceAll(Short(v1::UpgradePhase_Name(phase), "UPGRADE_PHASE_"), {{"_", " "}});
}

std::string FormatWorkerId(uint64_t id) { return id == 0 ? "-" : absl::StrCat(id); }

std::string FormatWorker(uint64_t id) { return id == 0 ? "nobody" : absl::StrCat("worker ", id); }

std::string FormatCount(uint64_t count, const std::string& what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string FormatVersions(const v1::Upgrade& upgrade) {
  const auto name = [](const std::string& version) { return version.empty() ? "?" : version; };
  return absl::StrCat(name(upgrade.old_version()), " -> ", name(upgrade.new_version()));
}

std::string FormatProgress(const v1::Upgrade& upgrade) {
  std::string text = FormatState(upgrade.phase());
  if (upgrade.paused()) absl::StrAppend(&text, " (paused)");
  if (upgrade.phase() == v1::UPGRADE_PHASE_WATCHING ||
      upgrade.phase() == v1::UPGRADE_PHASE_CANARY) {
    absl::StrAppend(&text, ", ", FormatDuration(upgrade.watch_seconds_left()), " left");
  }
  if (!upgrade.detail().empty()) absl::StrAppend(&text, ": ", upgrade.detail());
  return text;
}

std::string FormatElapsed(const v1::Upgrade& upgrade) {
  if (upgrade.ended_unix_micros() == 0) return "-";
  return FormatDuration(
      static_cast<double>(upgrade.ended_unix_micros() - upgrade.started_unix_micros()) * 1e-6);
}

std::string FormatMove(double blackout_us) {
  return blackout_us > 0 ? FormatMicroseconds(blackout_us) : "-";
}

std::string Printable(const std::string& text) { return OneLine(text, text.size()); }

std::string FormatVersion(const v1::Version& version) {
  return absl::StrCat(version.release(), " (layout ", version.layout_version(), ", protocol ",
                      version.protocol_version(), ")");
}

std::string ToJson(const google::protobuf::Message& message, bool whitespace) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = whitespace;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  return text;
}

}  // namespace baton
