#include "supervisor/cli/format.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
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

constexpr char kGap[] = "  ";
constexpr size_t kGapWidth = 2;
constexpr size_t kNarrowest = 16;  // the narrowest column to which texts are wrapped

// Takes `mark` from the front of `text`, if it is there.
bool Take(char mark, std::string* text) {
  if (!text->starts_with(mark)) return false;
  text->erase(0, 1);
  return true;
}

// Returns `text`, wrapped if it does not fit. It begins at `column` and is the last of its line.
std::string Fitted(const std::string& text, size_t column, const TableStyle& style) {
  const bool fits = style.columns == 0 || column + WidthOf(text) <= style.columns;
  if (fits || column + kNarrowest > style.columns) return text;
  return Wrap(text, column, column, style.columns);
}

// Returns the words of `text`. Text in backquotes is one word, because it is there to be copied.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const bool ends = i == text.size() || text[i] == ' ' || text[i] == '\n';
    if (ends) {
      if (!word.empty()) words.push_back(std::exchange(word, {}));
      continue;
    }
    const size_t close = text[i] == '`' ? text.find('`', i + 1) : std::string::npos;
    const size_t last = close == std::string::npos ? i : close;
    word.append(text, i, last - i + 1);
    i = last;
  }
  return words;
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

std::string FormatBuffers(uint64_t buffer_bytes, uint32_t shards, uint64_t shard_heap_bytes) {
  if (shard_heap_bytes == 0) return FormatBytes(buffer_bytes);
  return absl::StrCat(FormatBytes(buffer_bytes), " and ", FormatCount(shards, "heap"), " of ",
                      FormatBytes(shard_heap_bytes));
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

std::string Wrap(const std::string& text, size_t indent, size_t column, size_t columns) {
  std::string wrapped;
  bool first = true;
  for (const std::string& word : Words(text)) {
    const size_t width = WidthOf(word);
    if (!first && column + 1 + width > columns) {
      absl::StrAppend(&wrapped, "\n", std::string(indent, ' '), word);
      column = indent + width;
      continue;
    }
    absl::StrAppend(&wrapped, first ? "" : " ", word);
    column += width + (first ? 0 : 1);
    first = false;
  }
  return wrapped;
}

size_t WidthOf(const std::string& text) {
  constexpr unsigned char kKind = 0xc0, kContinuation = 0x80;
  return static_cast<size_t>(absl::c_count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & kKind) != kContinuation; }));
}

std::string Painted(const std::string& text, Colour colour) {
  const char* code = colour == Colour::kGreen    ? "\x1b[32m"
                     : colour == Colour::kYellow ? "\x1b[33m"
                                                 : "\x1b[31m";
  return colour == Colour::kNone ? text : absl::StrCat(code, text, "\x1b[0m");
}

Colour ColourOf(std::string_view state) {
  constexpr std::string_view kGreen[] = {"ok", "ready", "established", "completed", "OK"};
  constexpr std::string_view kYellow[] = {"waiting",      "drained",    "dying",    "attached",
                                          "requested",    "connecting", "draining", "starting",
                                          "handing over", "watching",   "canary",   "retiring",
                                          "returning",    "refused",    "WARNING"};
  constexpr std::string_view kRed[] = {"unreachable", "bad",    "failed",
                                       "rolled back", "nobody", "PROBLEM"};
  const size_t end = state.find_first_of(",:(");
  std::string_view word = state.substr(0, end);
  while (word.ends_with(' ')) word.remove_suffix(1);
  if (absl::c_linear_search(kGreen, word)) return Colour::kGreen;
  if (absl::c_linear_search(kYellow, word)) return Colour::kYellow;
  return absl::c_linear_search(kRed, word) ? Colour::kRed : Colour::kNone;
}

Table::Table(std::vector<std::string> titles, TableStyle style) : style_(style) {
  for (std::string& title : titles) {
    Column column;
    if (Take('+', &title)) column.shown = style_.wide;
    column.right = Take('>', &title);
    column.state = Take('!', &title);
    column.title = std::move(title);
    shown_.push_back(column.shown);
    if (column.shown) columns_.push_back(std::move(column));
  }
}

void Table::Add(std::initializer_list<absl::AlphaNum> row) {
  std::vector<std::string> cells;
  for (const absl::AlphaNum& cell : row) cells.emplace_back(cell.Piece());
  Add(std::move(cells));
}

void Table::Add(std::vector<std::string> row) {
  row.resize(shown_.size());
  Row cells;
  for (size_t i = 0; i < row.size(); ++i) {
    if (shown_[i]) cells.push_back(row[i].empty() ? "-" : Printable(row[i]));
  }
  rows_.push_back(std::move(cells));
}

std::vector<size_t> Table::Widths() const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (size_t i = 0; i < widths.size(); ++i) {
    if (style_.headers) widths[i] = WidthOf(columns_[i].title);
    for (const Row& row : rows_) widths[i] = std::max(widths[i], WidthOf(row[i]));
  }
  return widths;
}

void Table::PrintRow(std::ostream& out, const std::string& indent,
                     const std::vector<size_t>& widths, const Row& row, bool title) const {
  out << indent;
  size_t column = indent.size();
  for (size_t i = 0; i < row.size(); ++i) {
    const std::string fill(widths[i] - WidthOf(row[i]), ' ');
    const bool last = i + 1 == row.size();
    const bool paint = style_.colour && columns_[i].state && !title;
    const std::string cell = last && !columns_[i].right ? Fitted(row[i], column, style_) : row[i];
    if (columns_[i].right) out << fill;
    out << (paint ? Painted(cell, ColourOf(row[i])) : cell);
    if (!columns_[i].right && !last) out << fill;
    if (!last) out << kGap;
    column += widths[i] + kGapWidth;
  }
  out << '\n';
}

void Table::Print(std::ostream& out, const std::string& indent) const {
  const std::vector<size_t> widths = Widths();
  Row titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  if (style_.headers) PrintRow(out, indent, widths, titles, /*title=*/true);
  for (const Row& row : rows_) PrintRow(out, indent, widths, row, /*title=*/false);
}

void PrintFields(std::ostream& out, const std::vector<std::pair<std::string, std::string>>& fields,
                 const TableStyle& style, const std::string& indent) {
  const auto bare = [](std::string name) {
    Take('!', &name);
    return name;
  };
  size_t width = 0;
  for (const auto& [name, value] : fields) width = std::max(width, bare(name).size());
  const size_t column = indent.size() + width + 1 + kGapWidth;
  for (const auto& [marked, value] : fields) {
    const std::string name = bare(marked);
    const std::string text = Fitted(value.empty() ? "-" : Printable(value), column, style);
    const bool paint = style.colour && name != marked;
    out << indent << name << ':' << std::string(width - name.size(), ' ') << kGap
        << (paint ? Painted(text, ColourOf(text)) : text) << '\n';
  }
}

}  // namespace baton
