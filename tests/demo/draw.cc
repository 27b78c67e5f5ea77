// The picture: gnuplot draws it from data files that are kept beside it.
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "tests/demo/report.h"
#include "tests/demo/timeline.h"
#include "tests/harness/child_process.h"

namespace baton::demo {
namespace {

// The picture is this wide, and has no more points than it can show.
constexpr int kWidth = 1000;
constexpr int kHeight = 520;
constexpr size_t kPointsPerAct = 400;

// Grey of which the contrast to white equals that to GitHub's dark background.
constexpr char kInk[] = "#797979";
constexpr char kCurve[] = "#3f8ae0";

struct Panels {
  const ActResult& act;
  std::string title;
  std::string data;    // path
  double left, right;  // share of the picture's width
  double seconds = 0;
};

double SecondsSince(uint64_t start_us, uint64_t us) {
  return (static_cast<double>(us) - static_cast<double>(start_us)) * 1e-6;
}

// Columns: seconds since the start, messages per second, longest silence in milliseconds.
absl::Status WriteData(const std::string& timeline, Panels* panels) {
  BATON_ASSIGN_OR_RETURN(const std::vector<Bucket> buckets, ReadTimeline(timeline));
  uint64_t length_us = 0;
  std::ofstream out(panels->data);
  for (const Bucket& bucket : Thin(buckets, kPointsPerAct, &length_us)) {
    panels->seconds = SecondsSince(panels->act.start_us, bucket.start_us + length_us);
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
  for (const EventKind kind : {EventKind::kHandoff, EventKind::kUpgrade, EventKind::kBadUpgrade,
                               EventKind::kCrashHot, EventKind::kHang, EventKind::kCrashCold,
                               EventKind::kControlKill, EventKind::kPoison, EventKind::kBaseline}) {
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

std::string PlotMarks(const Panels& panels) {
  std::string plots;
  for (const EventKind kind : MarkedKinds(panels.act)) {
    absl::StrAppendFormat(&plots, "%s using 1:2 with lines lw 0.8 lc rgb '%s' notitle, ",
                          BlockOf(kind), LookOf(kind).colour);
  }
  return plots;
}

// Both panels of one act: throughput above, silences below.
std::string Plot(const Panels& panels, uint64_t rate) {
  std::string script = Marks(panels);
  absl::StrAppendFormat(&script,
                        "set lmargin at screen %g\nset rmargin at screen %g\n"
                        "set xrange [0:%.3f]\nset autoscale xfix\n",
                        panels.left, panels.right, std::max(panels.seconds, 0.1));
  absl::StrAppendFormat(
      &script,
      "set tmargin at screen 0.82\nset bmargin at screen 0.50\nunset logscale y\n"
      "set yrange [0:%d]\nset format x ''\nset format y '%%.0f'\nset ylabel 'messages per second'\n"
      "unset xlabel\nset title '%s' font ',14' offset 0,-0.4\n",
      5 * rate / 2, panels.title);
  absl::StrAppendFormat(&script, "plot %s'%s' using 1:2 with lines lc rgb '%s' notitle\n",
                        PlotMarks(panels), panels.data, kCurve);
  absl::StrAppendFormat(&script,
                        "set tmargin at screen 0.45\nset bmargin at screen 0.11\nset logscale y\n"
                        "set yrange [0.1:2000]\nset format x '%%g'\nset format y '%%g'\n"
                        "set ylabel 'longest silence, ms'\nset xlabel 'seconds'\nunset title\n");
  absl::StrAppendFormat(&script, "plot %s'%s' using 1:3 with lines lc rgb '%s' notitle\n",
                        PlotMarks(panels), panels.data, kCurve);
  return script;
}

// Three rows of names above everything, in the colours of their marks.
std::string Legend(const std::vector<EventKind>& kinds) {
  constexpr int kColumns = 4;
  std::string script;
  for (size_t i = 0; i < kinds.size(); ++i) {
    absl::StrAppendFormat(
        &script, "set label %d '{/:Bold |} %s' at screen %g, screen %g tc rgb '%s' font ',12'\n",
        i + 1, EventTitle(kinds[i]), 0.07 + 0.235 * static_cast<double>(i % kColumns),
        0.97 - 0.045 * static_cast<double>(i / kColumns), LookOf(kinds[i]).colour);
  }
  return script;
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
  Panels baton = {result.baton, "With Baton", directory + "/baton.dat", 0.07, both ? 0.66 : 0.98};
  BATON_RETURN_IF_ERROR(WriteData(absl::StrCat(directory, "/", kBatonTimeline), &baton));
  std::string script = absl::StrFormat(
      "set terminal svg size %d,%d dynamic font 'Helvetica,Arial,sans-serif,12'\n"
      "set output '%s/timeline.svg'\nset multiplot\nunset key\n"
      "set border lc rgb '%s'\nset tics textcolor rgb '%s'\nset grid y lc rgb '%s' lw 0.3\n"
      "set xlabel textcolor rgb '%s'\nset ylabel textcolor rgb '%s'\nset title textcolor rgb "
      "'%s'\n",
      kWidth, kHeight, directory, kInk, kInk, kInk, kInk, kInk, kInk);
  absl::StrAppend(&script, Legend(MarkedKinds(result.baton)), Plot(baton, result.baton.rate));
  if (both) {
    Panels baseline = {result.baseline, "Without: the process is killed, clients reconnect",
                       directory + "/baseline.dat", 0.73, 0.98};
    BATON_RETURN_IF_ERROR(WriteData(absl::StrCat(directory, "/", kBaselineTimeline), &baseline));
    absl::StrAppend(&script, "unset label\n", Plot(baseline, result.baton.rate));
  }
  script += "unset multiplot\n";
  const std::string script_path = directory + "/timeline.gnuplot";
  std::ofstream(script_path) << script;
  return RunGnuplot(script_path, directory);
}

}  // namespace baton::demo
