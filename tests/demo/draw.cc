// The picture: gnuplot draws it from data files that are kept beside it.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "tests/demo/report.h"
#include "tests/harness/child_process.h"

namespace baton::demo {
namespace {

constexpr uint64_t kBinMicroseconds = 20'000;  // of the throughput; timelines have bins of 5 ms

const char* Colour(EventKind kind) {
  switch (kind) {
    case EventKind::kQuiet:
    case EventKind::kUpgradeStart:
    case EventKind::kStandbyDrain:
    case EventKind::kStandbyCrash:
      return "";
    case EventKind::kHandoff:
      return "#2ca02c";
    case EventKind::kUpgrade:
      return "#17becf";
    case EventKind::kBadUpgrade:
      return "#e377c2";
    case EventKind::kCrashHot:
      return "#d62728";
    case EventKind::kHang:
      return "#8c564b";
    case EventKind::kCrashCold:
      return "#9467bd";
    case EventKind::kControlKill:
      return "#ff7f0e";
    case EventKind::kPoison:
      return "#0f766e";
    case EventKind::kBaseline:
      return "#d62728";
  }
  return "#000000";
}

const char* Title(EventKind kind) {
  switch (kind) {
    case EventKind::kQuiet:
    case EventKind::kUpgradeStart:
    case EventKind::kStandbyDrain:
    case EventKind::kStandbyCrash:
      return "";
    case EventKind::kHandoff:
      return "planned handoff";
    case EventKind::kUpgrade:
      return "upgrade";
    case EventKind::kBadUpgrade:
      return "bad upgrade";
    case EventKind::kCrashHot:
      return "owner killed, hot standby";
    case EventKind::kHang:
      return "owner stopped";
    case EventKind::kCrashCold:
      return "owner killed, no standby";
    case EventKind::kControlKill:
      return "control killed";
    case EventKind::kPoison:
      return "message that kills";
    case EventKind::kBaseline:
      return "process killed, warm successor";
  }
  return "";
}

// Columns: seconds since the start, messages per second, longest silence in milliseconds.
absl::Status WriteData(const std::string& timeline, uint64_t start_us, const std::string& path,
                       double* seconds) {
  std::ifstream in(timeline);
  std::ofstream out(path);
  if (!in || !out) return ErrnoStatus(errno, absl::StrCat("cannot draw from ", timeline));
  std::string line;
  std::getline(in, line);  // names of the columns
  uint64_t bin = 0, replies = 0, silence = 0;
  while (std::getline(in, line)) {
    uint64_t time = 0, count = 0, longest = 0;
    if (std::sscanf(line.c_str(), "%" SCNu64 ",%" SCNu64 ",%" SCNu64, &time, &count, &longest) !=
        3) {
      continue;
    }
    if (bin == 0) bin = time;
    replies += count;
    silence = std::max(silence, longest);
    if (time + 5000 < bin + kBinMicroseconds) continue;
    *seconds = (static_cast<double>(bin) - static_cast<double>(start_us)) * 1e-6;
    out << absl::StrFormat("%.4f %.1f %.3f\n", *seconds,
                           static_cast<double>(replies) * 1e6 / kBinMicroseconds,
                           std::max(static_cast<double>(silence) / 1000, 0.01));
    bin = 0;
    replies = silence = 0;
  }
  return absl::OkStatus();
}

std::string Marks(const ActResult& act, double from, double to) {
  std::string script = "unset arrow\n";
  for (const Event& event : act.events) {
    if (event.kind == EventKind::kQuiet || event.kind == EventKind::kUpgradeStart) continue;
    const double time =
        (static_cast<double>(event.monotonic_us) - static_cast<double>(act.start_us)) * 1e-6;
    absl::StrAppendFormat(
        &script,
        "set arrow from first %.4f, graph %g to first %.4f, graph %g nohead lc rgb '%s' lw 0.7 "
        "back\n",
        time, from, time, to, Colour(event.kind));
  }
  return script;
}

// Entries of the legend, one for each kind of event in `act`.
std::string Legend(const ActResult& act) {
  std::string plots;
  for (EventKind kind : {EventKind::kHandoff, EventKind::kUpgrade, EventKind::kBadUpgrade,
                         EventKind::kCrashHot, EventKind::kHang, EventKind::kCrashCold,
                         EventKind::kControlKill, EventKind::kPoison, EventKind::kBaseline}) {
    if (Summarize(act.events, kind).count == 0) continue;
    absl::StrAppendFormat(&plots, ", NaN with lines lw 2 lc rgb '%s' title '%s'", Colour(kind),
                          Title(kind));
  }
  return plots;
}

std::string Panels(const ActResult& act, const std::string& data, const std::string& title,
                   double seconds, double left, double right) {
  std::string script;
  absl::StrAppendFormat(&script, "set lmargin at screen %g\nset rmargin at screen %g\n", left,
                        right);
  absl::StrAppendFormat(&script, "set xrange [0:%.3f]\n", std::max(seconds, 0.1));
  absl::StrAppendFormat(&script,
                        "set key at screen %g, screen 0.98 center top horizontal maxrows 1 "
                        "samplen 1.5 font ',11'\n",
                        (left + right) / 2);
  absl::StrAppend(&script, "set tmargin at screen 0.86\nset bmargin at screen 0.52\n",
                  "unset logscale y\nset yrange [0:", 5 * act.rate / 2,
                  "]\nset format x ''\nset ylabel 'replies per second'\n",
                  "set xlabel ''\nset title '", title, "' font ',15'\n", Marks(act, 0, 1));
  absl::StrAppend(&script, "plot '", data, "' using 1:2 with lines lc rgb '#1f77b4' notitle",
                  Legend(act), "\n");
  absl::StrAppend(&script, "set tmargin at screen 0.43\nset bmargin at screen 0.10\n",
                  "set logscale y\nset yrange [0.1:2000]\nset format x '%g'\nset ylabel 'longest "
                  "silence, ms'\n",
                  "set xlabel 'seconds'\nset title ''\n", Marks(act, 0, 1));
  absl::StrAppend(&script, "plot '", data, "' using 1:3 with lines lc rgb '#1f77b4' notitle\n");
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
  double seconds = 0;
  BATON_RETURN_IF_ERROR(WriteData(directory + "/baton.csv", result.baton.start_us,
                                  directory + "/baton.dat", &seconds));
  std::string script =
      absl::StrCat("set terminal svg size ", both ? 1500 : 1000,
                   ",720 dynamic background '#ffffff' font 'Helvetica,13'\nset output '", directory,
                   "/timeline.svg'\nset multiplot\nset grid y lc rgb '#dddddd'\nset key outside "
                   "center above horizontal samplen 2\n");
  absl::StrAppend(&script, Panels(result.baton, directory + "/baton.dat", "With Baton", seconds,
                                  0.07, both ? 0.60 : 0.97));
  if (both) {
    BATON_RETURN_IF_ERROR(WriteData(directory + "/baseline.csv", result.baseline.start_us,
                                    directory + "/baseline.dat", &seconds));
    absl::StrAppend(&script, Panels(result.baseline, directory + "/baseline.dat", "Without",
                                    seconds, 0.67, 0.98));
  }
  script += "unset multiplot\n";
  const std::string script_path = directory + "/timeline.gnuplot";
  std::ofstream(script_path) << script;
  return RunGnuplot(script_path, directory);
}

}  // namespace baton::demo
