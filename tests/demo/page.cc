// The page: its template with the results and the timelines in it. The picture.
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "lib/base/status.h"
#include "tests/demo/report.h"
#include "tests/demo/scenario.h"
#include "tests/harness/child_process.h"

namespace baton::demo {

// The text of page_template.html, which the build turns into a source.
extern const char kPageTemplate[];

namespace {

using nlohmann::ordered_json;

std::string EscapeHtml(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

double SecondsSince(uint64_t start_us, uint64_t us) {
  return (static_cast<double>(us) - static_cast<double>(start_us)) * 1e-6;
}

ordered_json EventsJson(const ActResult& act) {
  ordered_json events = ordered_json::array();
  for (const Event& event : act.events) {
    if (event.kind == EventKind::kQuiet || event.kind == EventKind::kUpgradeStart) continue;
    events.push_back({{"kind", EventKindName(event.kind)},
                      {"seconds", SecondsSince(act.start_us, event.monotonic_us)},
                      {"blackout_us", event.silence_us},
                      {"problem", event.problem}});
  }
  return events;
}

ordered_json ActJson(const ActResult& act, const std::string& title,
                     const std::vector<Bucket>& buckets) {
  ordered_json replies = ordered_json::array(), silences = ordered_json::array();
  for (const Bucket& bucket : buckets) {
    replies.push_back(bucket.replies);
    silences.push_back(bucket.silence_us);
  }
  return {{"title", title},
          {"first_seconds", SecondsSince(act.start_us, buckets.front().start_us)},
          {"bucket_seconds", Bucket::kMicroseconds * 1e-6},
          {"events", EventsJson(act)},
          {"replies", std::move(replies)},
          {"silence_us", std::move(silences)}};
}

ordered_json KindsJson() {
  ordered_json kinds;
  for (int i = 0; i <= static_cast<int>(EventKind::kStandbyCrash); ++i) {
    const EventLook& look = LookOf(static_cast<EventKind>(i));
    kinds[look.name] = {{"title", look.title}, {"colour", look.colour}};
  }
  return kinds;
}

// Acts that have no timeline are left out: they failed, and the table says so.
std::string DataJson(const DemoResult& result, const std::string& directory) {
  ordered_json acts = ordered_json::array();
  const std::tuple<const ActResult*, const char*, const char*> all[] = {
      {&result.baton, "With Baton", kBatonTimeline},
      {&result.standby, "Without Baton: each client has a second connection, to a warm standby",
       kStandbyTimeline},
      {&result.baseline, "Without Baton: clients reconnect, to a warm successor",
       kBaselineTimeline}};
  for (const auto& [act, title, file] : all) {
    const auto buckets = ReadTimeline(absl::StrCat(directory, "/", file));
    if (buckets.ok()) acts.push_back(ActJson(*act, title, *buckets));
  }
  const ordered_json data = {{"result", ordered_json::parse(ToJson(result))},
                             {"kinds", KindsJson()},
                             {"acts", std::move(acts)}};
  return data.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string ToPage(const DemoResult& result, const std::string& directory) {
  // In JSON, "<" is part of strings alone: none of them ends the script that it is in.
  return absl::StrReplaceAll(
      kPageTemplate,
      {{"{{SENTENCE}}", EscapeHtml(ToSentence(result))},
       {"{{TABLE}}", EscapeHtml(ToTable(result))},
       {"{{DATA}}", absl::StrReplaceAll(DataJson(result, directory), {{"<", "\\u003c"}})}});
}

absl::Status WritePage(const DemoResult& result, const std::string& directory) {
  const std::string path = directory + "/demo.html";
  std::ofstream out(path);
  out << ToPage(result, directory);
  out.close();
  if (out) return absl::OkStatus();
  return absl::UnavailableError("cannot write " + path);
}

// ---- The picture: gnuplot draws it from data files that are kept beside it.

std::string Compact(const std::string& svg) {
  std::string text = svg;
  // The symbols for points.
  if (const size_t start = text.find("<defs>"), end = text.find("</defs>\n");
      start < end && end != std::string::npos) {
    text.erase(start, end + 8 - start);
  }
  text = absl::StrReplaceAll(
      text, {{R"( stroke-linecap="butt" stroke-linejoin="miter")", ""}, {"<text></text>", ""}});
  // Tenths of a pixel are enough.
  text = std::regex_replace(text, std::regex(R"((\d\.\d)\d\b)"), "$1");
  // Groups without content, from the innermost.
  static const std::regex empty(R"(<g\b[^>]*>\s*</g>\s*)");
  for (size_t before = 0; before != text.size();) {
    before = text.size();
    text = std::regex_replace(text, empty, "");
  }
  return text;
}

namespace {

// The picture is this wide, and has no more points than it can show.
constexpr int kWidth = 1000;
constexpr int kHeight = 520;
constexpr double kPoints = 600;

// Grey of which the contrast to white equals that to GitHub's dark background.
constexpr char kInk[] = "#797979";
constexpr char kCurve[] = "#3f8ae0";

struct Panels {
  const ActResult& act;
  std::string title;
  std::string data;           // path
  double left, right;         // share of the picture's width
  double start = 0, end = 0;  // what is shown, in seconds
};

// Leaves out the search for a rate, before the first event.
double StartOfPicture(const ActResult& act) {
  if (act.events.empty()) return 0;
  return std::max(0.0, SecondsSince(act.start_us, act.events.front().monotonic_us) - 0.5);
}

// Columns: seconds since the start, messages per second, longest silence in milliseconds.
absl::Status WriteData(const std::string& timeline, Panels* panels) {
  BATON_ASSIGN_OR_RETURN(const std::vector<Bucket> buckets, ReadTimeline(timeline));
  uint64_t length_us = 0;
  const auto count = static_cast<size_t>(kPoints * (panels->right - panels->left));
  std::ofstream out(panels->data);
  panels->start = StartOfPicture(panels->act);
  for (const Bucket& bucket : Thin(buckets, count, &length_us)) {
    panels->end = SecondsSince(panels->act.start_us, bucket.start_us + length_us);
    out << absl::StrFormat(
        "%.3f %.0f %.2f\n", SecondsSince(panels->act.start_us, bucket.start_us),
        static_cast<double>(bucket.replies) * 1e6 / static_cast<double>(length_us),
        std::max(static_cast<double>(bucket.silence_us) / 1000, 0.1));
  }
  out.close();
  if (out) return absl::OkStatus();
  return absl::UnavailableError("cannot write " + panels->data);
}

// The kinds of event that are marked in the picture, in the order of EventKind.
std::vector<EventKind> MarkedKinds(const ActResult& act) {
  std::vector<EventKind> kinds;
  for (const EventKind kind :
       {EventKind::kHandoff, EventKind::kUpgrade, EventKind::kBadUpgrade, EventKind::kCrashHot,
        EventKind::kHang, EventKind::kCrashCold, EventKind::kDriverKill, EventKind::kControlKill,
        EventKind::kKeeperKill, EventKind::kBatonUpgrade, EventKind::kBatondKill,
        EventKind::kPoison, EventKind::kBaseline}) {
    if (Summarize(act.events, kind).count > 0) kinds.push_back(kind);
  }
  return kinds;
}

std::string BlockOf(EventKind kind) { return absl::StrCat("$", EventKindName(kind)); }

// A block of data for each kind: a vertical line at each event.
std::string Marks(const Panels& panels) {
  std::string script;
  for (const EventKind kind : MarkedKinds(panels.act)) {
    absl::StrAppend(&script, BlockOf(kind), " << EOD\n");
    for (const Event& event : panels.act.events) {
      if (event.kind != kind) continue;
      const double time = SecondsSince(panels.act.start_us, event.monotonic_us);
      absl::StrAppendFormat(&script, "%.3f 0.1\n%.3f 1e9\n\n", time, time);
    }
    absl::StrAppend(&script, "EOD\n");
  }
  return script;
}

// The alpha channel, which is 0 for opaque, comes before the colour.
std::string PlotMarks(const Panels& panels) {
  std::string plots;
  for (const EventKind kind : MarkedKinds(panels.act)) {
    absl::StrAppendFormat(&plots, "%s using 1:2 with lines lc rgb '#70%s' title '%s', ",
                          BlockOf(kind), LookOf(kind).colour + 1, EventTitle(kind));
  }
  return plots;
}

// Both panels of one act: throughput above, silences below.
std::string Plot(const Panels& panels, uint64_t rate) {
  const std::string ink = absl::StrFormat("textcolor rgb '%s'", kInk);
  std::string script = Marks(panels);
  absl::StrAppendFormat(
      &script,
      "set lmargin at screen %g\nset rmargin at screen %g\nset xrange [%.3f:%.3f]\n"
      "set tmargin at screen 0.82\nset bmargin at screen 0.49\nunset logscale y\n"
      "set yrange [0:%d]\nset format x ''\nset format y '%%.0f'\nset ytics %d\n"
      "unset xlabel\nset title '%s' font ',14' offset 0,-0.4 %s\n",
      panels.left, panels.right, panels.start, std::max(panels.end, panels.start + 0.1),
      5 * rate / 2, std::max<uint64_t>(rate / 1000 * 1000, 500), panels.title, ink);
  const std::string labels = panels.left < 0.5 ? "set ylabel '%s' " + ink + "\n" : "unset ylabel\n";
  absl::StrAppend(&script, absl::StrReplaceAll(labels, {{"%s", "messages per second"}}));
  absl::StrAppendFormat(&script, "plot %s'%s' using 1:2 with lines lc rgb '%s' title 'messages'\n",
                        PlotMarks(panels), panels.data, kCurve);
  absl::StrAppendFormat(&script,
                        "set tmargin at screen 0.45\nset bmargin at screen 0.12\nset logscale y\n"
                        "set yrange [0.1:2000]\nset format x '%%g'\nset format y '%%g'\n"
                        "set ytics 10\nset xlabel 'seconds' offset 0,0.3 %s\nunset title\n",
                        ink);
  absl::StrAppend(&script, absl::StrReplaceAll(labels, {{"%s", "longest silence, ms"}}));
  absl::StrAppendFormat(&script, "plot %s'%s' using 1:3 with lines lc rgb '%s' title 'silence'\n",
                        PlotMarks(panels), panels.data, kCurve);
  return script;
}

// Rows of names above everything, in the colours of their marks.
std::string Legend(const std::vector<EventKind>& kinds) {
  constexpr size_t kColumns = 4;
  std::string script;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const size_t row = i / kColumns;
    absl::StrAppendFormat(&script,
                          "set label %d '■ %s' at screen %g, screen %g textcolor rgb '%s'\n", i + 1,
                          EventTitle(kinds[i]), 0.08 + 0.23 * static_cast<double>(i % kColumns),
                          0.97 - 0.045 * static_cast<double>(row), LookOf(kinds[i]).colour);
  }
  return script;
}

absl::Status MakeSmaller(const std::string& path) {
  std::ifstream in(path);
  const std::string svg((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::ofstream out(path);
  out << Compact(svg);
  out.close();
  if (in && out) return absl::OkStatus();
  return absl::UnavailableError("cannot write " + path);
}

absl::Status RunGnuplot(const std::string& script, const std::string& directory) {
  harness::ChildOptions child;
  child.program = "/usr/bin/gnuplot";
  child.arguments = {script};
  child.log_path = directory + "/gnuplot.log";
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<harness::ChildProcess> process,
                         harness::ChildProcess::Start(child));
  BATON_ASSIGN_OR_RETURN(const int status, process->WaitEnd(std::chrono::seconds(60)));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError("gnuplot failed: " + process->LogTail());
}

}  // namespace

absl::Status Draw(const DemoResult& result, const std::string& directory) {
  const bool both = result.options.baseline_runs != 0 && result.baseline.peer_finished;
  Panels baton = {result.baton, "With Baton", directory + "/baton.dat", 0.08, both ? 0.67 : 0.98};
  BATON_RETURN_IF_ERROR(WriteData(absl::StrCat(directory, "/", kBatonTimeline), &baton));
  std::string script = absl::StrFormat(
      "set encoding utf8\n"
      "set terminal svg size %d,%d dynamic font 'Helvetica,Arial,sans-serif,12'\n"
      "set output '%s/timeline.svg'\nset multiplot\nunset key\nset border lc rgb '%s'\n"
      "set tics textcolor rgb '%s'\nset mytics 1\nset grid y lc rgb '%s' lw 0.3\n",
      kWidth, kHeight, directory, kInk, kInk, kInk);
  absl::StrAppend(&script, Legend(MarkedKinds(result.baton)), Plot(baton, result.baton.rate));
  if (both) {
    Panels baseline = {result.baseline, "Without: process killed, clients reconnect",
                       directory + "/baseline.dat", 0.73, 0.98};
    BATON_RETURN_IF_ERROR(WriteData(absl::StrCat(directory, "/", kBaselineTimeline), &baseline));
    absl::StrAppend(&script, "unset label\n", Plot(baseline, result.baton.rate));
  }
  script += "unset multiplot\n";
  const std::string script_path = directory + "/timeline.gnuplot";
  std::ofstream(script_path) << script;
  BATON_RETURN_IF_ERROR(RunGnuplot(script_path, directory));
  return MakeSmaller(directory + "/timeline.svg");
}

}  // namespace baton::demo
