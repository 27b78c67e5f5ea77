#include "tests/bench/suite.h"

#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "tests/bench/cost.h"
#include "tests/bench/quantile.h"
#include "tests/demo/cpu_meter.h"
#include "tests/harness/child_process.h"
#include "worker/examples/common/json_line.h"

namespace baton::bench {
namespace {

using examples::JsonLine;

// How much worse than recorded a ratio may be: machines differ, and rounds are few.
constexpr double kGenerous = 2;
constexpr const char* kGnuplot = "/usr/bin/gnuplot";

bool IsQuiet(double others_cores) { return others_cores < kQuietCores; }

// Small ones keep their digits.
std::string Precise(double value) { return absl::StrFormat("%.6g", value); }

double Divide(double value, double by) { return by > 0 ? value / by : 0; }

bool KeepsTo(const Ratio& ratio, double value, double bar) {
  return ratio.better == Better::kLess ? value <= bar : value >= bar;
}

std::string_view NameOf(Better better) {
  return better == Better::kLess ? "less is better" : "more is better";
}

std::string List(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& item : items) absl::StrAppend(&text, text.size() > 1 ? "," : "", item);
  return text + "]";
}

absl::Status RunGnuplot(const std::string& script) {
  harness::ChildOptions gnuplot;
  gnuplot.program = kGnuplot;
  gnuplot.arguments = {script};
  gnuplot.log_path = script + ".log";
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<harness::ChildProcess> process,
                         harness::ChildProcess::Start(gnuplot));
  BATON_ASSIGN_OR_RETURN(const int status, process->WaitEnd(std::chrono::seconds(60)));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError("gnuplot failed: " + process->LogTail());
}

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write " + path);
}

}  // namespace

void AddSuiteOptions(CLI::App& app, SuiteOptions* options) {
  app.add_option("--rounds", options->rounds, "measured in turns, so many times [5]")
      ->check(CLI::Range(1, 1000));
  app.add_option("--scale", options->scale, "so many times the operations of a measurement [1]")
      ->check(CLI::Range(0.001, 1000.0));
  app.add_option("--output", options->output, "directory for JSON and plots");
  app.add_option("--recorded", options->recorded,
                 "file with ratios; one twice as bad as there is an error");
}

int ExitCode(std::string_view suite, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%.*s_bench: %s\n", static_cast<int>(suite.size()), suite.data(),
               std::string(status.message()).c_str());
  return 1;
}

void Round::Set(std::string_view figure, double value, std::string_view unit) {
  const auto [place, added] = values_.try_emplace(std::string(figure));
  if (added) order_.emplace_back(figure);
  place->second = {value, std::string(unit)};
}

double Round::Of(std::string_view figure) const {
  const auto found = values_.find(figure);
  return found == values_.end() ? 0 : found->second.value;
}

uint32_t Suite::Scaled(uint32_t count, uint32_t least) const {
  return std::max(least, static_cast<uint32_t>(count * options_.scale));
}

void Suite::Add(Round round, double others_cores) {
  round.others_cores_ = others_cores;
  rounds_.push_back(std::move(round));
}

absl::Status Suite::Run(const std::function<absl::Status(Round&)>& measure) {
  for (uint32_t i = 0; i < options_.rounds; ++i) {
    Round round(i);
    const MachineTimes before = ReadMachineTimes();
    BATON_RETURN_IF_ERROR(measure(round));
    const double others = ReadMachineTimes().OthersSince(before);
    std::fprintf(stderr, "%s: round %u of %u; others used %.2f cores\n", name_.c_str(), i + 1,
                 options_.rounds, others);
    Add(std::move(round), others);
  }
  return absl::OkStatus();
}

size_t Suite::quiet_rounds() const {
  return static_cast<size_t>(std::count_if(rounds_.begin(), rounds_.end(), [](const Round& round) {
    return IsQuiet(round.others_cores_);
  }));
}

double Suite::Median(const std::function<double(const Round&)>& value) const {
  const bool any = quiet_rounds() == 0;
  std::vector<double> values;
  for (const Round& round : rounds_) {
    if (any || IsQuiet(round.others_cores_)) values.push_back(value(round));
  }
  return Quantile(values, 0.5);
}

double Suite::MedianOf(std::string_view figure) const {
  return Median([&](const Round& round) { return round.Of(figure); });
}

double Suite::MedianOf(const Ratio& ratio) const {
  if (ratio.to.empty()) return MedianOf(ratio.of);
  return Median([&](const Round& round) { return Divide(round.Of(ratio.of), round.Of(ratio.to)); });
}

bool Suite::WasMeasured(const Ratio& ratio) const {
  const auto has = [this](const std::string& figure) {
    return std::any_of(rounds_.begin(), rounds_.end(), [&](const Round& round) {
      return round.values_.find(figure) != round.values_.end();
    });
  };
  return has(ratio.of) && (ratio.to.empty() || has(ratio.to));
}

std::string Suite::ToTable() const {
  std::string text;
  for (const Ratio& ratio : ratios_) {
    if (!WasMeasured(ratio)) continue;
    const double value = MedianOf(ratio);
    absl::StrAppendFormat(&text, "%-44s %9.3f   %s", ratio.name, value, NameOf(ratio.better));
    if (ratio.bar > 0) {
      absl::StrAppendFormat(&text, "; %s %g: %s",
                            ratio.better == Better::kLess ? "at most" : "at least", ratio.bar,
                            KeepsTo(ratio, value, ratio.bar) ? "met" : "NOT MET");
    }
    text += '\n';
  }
  text += '\n';
  if (!rounds_.empty()) {
    for (const std::string& figure : rounds_[0].order_) {
      absl::StrAppendFormat(&text, "%-44s %12.3f   %s\n", figure, MedianOf(figure),
                            rounds_[0].values_.find(figure)->second.unit);
    }
  }
  absl::StrAppendFormat(&text, "\n%d rounds, %d of them quiet (others used less than %.1f cores)",
                        rounds_.size(), quiet_rounds(), kQuietCores);
  if (quiet_rounds() == 0) {
    text += ": NONE, so these figures are those of a machine that others used";
  }
  utsname name = {};
  uname(&name);
  absl::StrAppendFormat(&text, "; Linux %s, %d cores%s\n", name.release, demo::UsableCores(),
                        std::getenv("BATON_VM") != nullptr ? ", emulated" : "");
  return text;
}

std::string Suite::ToJson() const {
  JsonLine ratios, figures;
  for (const Ratio& ratio : ratios_) {
    if (!WasMeasured(ratio)) continue;
    JsonLine line;
    line.Raw("value", Precise(MedianOf(ratio))).Text("of", ratio.of).Text("to", ratio.to);
    line.Text("better", ratio.better == Better::kLess ? "less" : "more");
    if (ratio.bar > 0) line.Number("bar", ratio.bar);
    ratios.Raw(ratio.name, line.Finish());
  }
  if (!rounds_.empty()) {
    for (const std::string& figure : rounds_[0].order_) {
      JsonLine line;
      line.Raw("value", Precise(MedianOf(figure)));
      line.Text("unit", rounds_[0].values_.find(figure)->second.unit);
      figures.Raw(figure, line.Finish());
    }
  }
  std::vector<std::string> rounds;
  for (const Round& round : rounds_) {
    JsonLine line;
    line.Number("others_cores", round.others_cores_);
    line.Flag("quiet", IsQuiet(round.others_cores_));
    for (const std::string& figure : round.order_) line.Raw(figure, Precise(round.Of(figure)));
    rounds.push_back(line.Finish());
  }
  utsname name = {};
  uname(&name);
  return JsonLine()
      .Text("benchmark", name_)
      .Raw("ratios", ratios.Finish())
      .Raw("figures", figures.Finish())
      .Count("rounds", rounds_.size())
      .Count("quiet_rounds", quiet_rounds())
      .Raw("each_round", List(rounds))
      .Text("kernel", name.release)
      .Count("cores", demo::UsableCores())
      .Flag("virtual_machine", std::getenv("BATON_VM") != nullptr)
      .Finish();
}

absl::Status Suite::Report() const {
  std::fputs(ToTable().c_str(), stdout);
  std::fflush(stdout);
  if (!options_.output.empty()) BATON_RETURN_IF_ERROR(WriteFiles());
  return options_.recorded.empty() ? absl::OkStatus() : CompareWith(options_.recorded);
}

absl::Status Suite::WriteFiles() const {
  std::error_code error;
  std::filesystem::create_directories(options_.output, error);
  BATON_RETURN_IF_ERROR(Write(options_.output + "/" + name_ + ".json", ToJson() + "\n"));
  for (const Plot& plot : plots_) BATON_RETURN_IF_ERROR(WritePlot(plot));
  return absl::OkStatus();
}

// gnuplot draws it from a script that has the data and is kept beside it; where there is no
// gnuplot, it can be drawn elsewhere. Both axes are logarithmic: what is plotted here spans orders
// of magnitude.
absl::Status Suite::WritePlot(const Plot& plot) const {
  const std::string name = name_ + "-" + plot.name;
  const std::string path = options_.output + "/" + name + ".gnuplot";
  std::string script =
      absl::StrCat("if (!exists('directory')) directory = '", options_.output,
                   "'\nset terminal svg size 900,560 background '#ffffff' font 'Helvetica,13'\n",
                   "set output directory.'/", name, ".svg'\nset title '", plot.title,
                   "'\nset xlabel '", plot.x_label, "'\nset ylabel '", plot.y_label,
                   "'\nset logscale xy\nset grid lc rgb '#dddddd'\nset key outside right top\n");
  std::string plots;
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    std::string points;
    for (const auto& [x, figure] : plot.lines[i].points) {
      if (MedianOf(figure) > 0) absl::StrAppend(&points, x, " ", MedianOf(figure), "\n");
    }
    if (points.empty()) continue;
    absl::StrAppend(&script, "$line", i, " << END\n", points, "END\n");
    absl::StrAppend(&plots, plots.empty() ? "plot " : ", ", "$line", i,
                    " with linespoints lw 2 pt 7 ps 0.7 title '", plot.lines[i].title, "'");
  }
  if (plots.empty()) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(Write(path, script + plots + "\n"));
  return access(kGnuplot, X_OK) == 0 ? RunGnuplot(path) : absl::OkStatus();
}

absl::Status Suite::CompareWith(const std::string& recorded) const {
  std::ifstream file(recorded);
  if (!file) return absl::NotFoundError("cannot read " + recorded);
  std::map<std::string, double> known;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string suite, ratio;
    double value = 0;
    if (words >> suite >> ratio >> value && suite == name_) known[ratio] = value;
  }
  if (known.empty()) {
    return absl::NotFoundError(absl::StrCat(recorded, " has no ratio of the suite ", name_));
  }
  std::string worse;
  for (const Ratio& ratio : ratios_) {
    const auto found = known.find(ratio.name);
    if (found == known.end()) continue;
    const double recorded_value = found->second;
    known.erase(found);
    if (!WasMeasured(ratio)) {
      absl::StrAppend(&worse, worse.empty() ? "" : "; ", ratio.name, " was not measured");
      continue;
    }
    const double limit =
        ratio.better == Better::kLess ? recorded_value * kGenerous : recorded_value / kGenerous;
    if (KeepsTo(ratio, MedianOf(ratio), limit)) continue;
    absl::StrAppend(&worse, worse.empty() ? "" : "; ", ratio.name, " is ", MedianOf(ratio),
                    ", recorded is ", recorded_value);
  }
  for (const auto& [name, value] : known) {
    absl::StrAppend(&worse, worse.empty() ? "" : "; ", name,
                    " is recorded, and no ratio of the suite");
  }
  if (worse.empty()) return absl::OkStatus();
  if (quiet_rounds() == 0) {
    std::fprintf(stderr, "%s: others used the machine, so this is worth nothing: %s\n",
                 name_.c_str(), worse.c_str());
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(name_, ": far from what is recorded: ", worse));
}

}  // namespace baton::bench
