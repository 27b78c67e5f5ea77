#include "tests/bench/suite.h"

#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/base/status.h"
#include "tests/demo/cpu_meter.h"
#include "tests/harness/child_process.h"
#include "tests/harness/quantile.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {
namespace {

using nlohmann::ordered_json;

// A ratio that is so many times as bad as recorded is worse, however its rounds are spread.
constexpr double kGenerous = 2;
constexpr const char* kGnuplot = "/usr/bin/gnuplot";

constexpr const char* kNotMeasured = "baton.bench/not_measured";  // a payload of such errors

bool IsQuiet(std::optional<double> others_cores) {
  return others_cores.has_value() && *others_cores < kQuietCores;
}

// Small ones keep their digits.
ordered_json JsonOf(std::optional<double> value) {
  return value.has_value() ? ordered_json(*value) : ordered_json(nullptr);
}

std::optional<double> ValueOf(const Ratio& ratio, const Round& round) {
  const std::optional<double> of = round.Of(ratio.of);
  if (!of.has_value() || (ratio.better == Better::kLess && *of <= 0)) return std::nullopt;
  if (ratio.to.empty()) return of;
  const std::optional<double> to = round.Of(ratio.to);
  if (!to.has_value() || *to <= 0) return std::nullopt;
  return *of / *to;
}

bool KeepsTo(const Ratio& ratio, double value, double bar) {
  return ratio.better == Better::kLess ? value <= bar : value >= bar;
}

std::string_view NameOf(Better better) {
  return better == Better::kLess ? "less is better" : "more is better";
}

struct Record {
  std::string suite, ratio;
  double value = 0;
  std::optional<Spread> spread;
};

absl::StatusOr<Record> ParseRecord(const std::vector<std::string>& words) {
  absl::Status malformed = absl::InvalidArgumentError(
      "is not \"SUITE RATIO VALUE [LOW HIGH]\" with 0 < LOW <= VALUE <= HIGH");
  double value = 0;
  if (words.size() != 3 && words.size() != 5) return malformed;
  if (!absl::SimpleAtod(words[2], &value) || !(value > 0)) return malformed;
  Record record{words[0], words[1], value, std::nullopt};
  if (words.size() == 3) return record;
  Spread spread;
  if (!absl::SimpleAtod(words[3], &spread.low) || !absl::SimpleAtod(words[4], &spread.high)) {
    return malformed;
  }
  if (!(spread.low > 0) || !(spread.low <= value) || !(value <= spread.high)) return malformed;
  record.spread = spread;
  return record;
}

absl::StatusOr<std::vector<Record>> ReadRecords(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError("cannot read " + path);
  std::vector<Record> records;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    if (words.empty() || words[0][0] == '#') continue;
    absl::StatusOr<Record> record = ParseRecord(words);
    if (!record.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": \"", line, "\" ", std::string(record.status().message())));
    }
    records.push_back(*std::move(record));
  }
  return records;
}

// Returns why the ratio is worse than recorded, and an empty string if it is not.
std::string WhyWorse(const Ratio& ratio, const Record& record, double median,
                     const std::optional<Spread>& spread) {
  const bool less = ratio.better == Better::kLess;
  std::string what = absl::StrCat(ratio.name, " is ", median, ", recorded is ", record.value);
  const double limit = less ? record.value * kGenerous : record.value / kGenerous;
  if (!KeepsTo(ratio, median, limit)) return what;
  if (!record.spread.has_value() || !spread.has_value()) return "";
  const bool beyond = less ? spread->low > record.spread->high : spread->high < record.spread->low;
  if (!beyond) return "";
  return absl::StrCat(what, " (quartiles ", spread->low, " and ", spread->high, ", recorded are ",
                      record.spread->low, " and ", record.spread->high, ")");
}

std::string ToText(const std::optional<Spread>& spread) {
  if (!spread.has_value()) return "";
  return absl::StrFormat("(%.3f, %.3f)", spread->low, spread->high);
}

// Both of them, as the error that says more: that something is so, or else that it is not known.
absl::Status Both(const absl::Status& one, const absl::Status& other) {
  if (one.ok()) return other;
  if (other.ok()) return one;
  const std::string text = absl::StrCat(one.message(), "; ", other.message());
  if (!IsNotMeasured(one)) return absl::Status(one.code(), text);
  return IsNotMeasured(other) ? NotMeasuredError(text) : absl::Status(other.code(), text);
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

void AddSuiteOptions(examples::Flags& flags, SuiteOptions* options) {
  flags.Add("--rounds", &options->rounds, "measured in turns, so many times [5]").Within(1, 1000);
  flags.Add("--scale", &options->scale, "so many times the operations of a measurement [1]")
      .Within(0.001, 1000.0);
  flags.Add("--output", &options->output, "directory for JSON and plots");
  flags.Add("--recorded", &options->recorded,
            "file with ratios; one worse than there, by its spread or twice, is an error; then "
            "up to three times the rounds are measured");
  flags.Switch("--print-record", &options->print_record,
               "print each ratio and its spread as a line for that file");
  flags.Switch("--check", &options->check,
               "end with 1 when a bar is not met, and with 3 when that was not measured: too few "
               "rounds were quiet, or a figure is missing");
}

absl::Status NotMeasuredError(std::string_view message) {
  absl::Status status = absl::UnknownError(std::string(message));
  status.SetPayload(kNotMeasured, absl::Cord());
  return status;
}

bool IsNotMeasured(const absl::Status& status) {
  return status.GetPayload(kNotMeasured).has_value();
}

int ExitCode(std::string_view suite, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%.*s_bench: %s\n", static_cast<int>(suite.size()), suite.data(),
               std::string(status.message()).c_str());
  return IsNotMeasured(status) ? kExitNotMeasured : kExitFailed;
}

void Round::Set(std::string_view figure, std::optional<double> value, std::string_view unit,
                Over over) {
  if (value.has_value() && !std::isfinite(*value)) value.reset();
  const auto [place, added] = values_.try_emplace(std::string(figure));
  if (added) order_.emplace_back(figure);
  place->second = {value, std::string(unit), over};
}

std::optional<double> Round::Of(std::string_view figure) const {
  const auto found = values_.find(figure);
  return found == values_.end() ? std::nullopt : found->second.value;
}

uint32_t Suite::Scaled(uint32_t count, uint32_t least) const {
  return std::max(least, static_cast<uint32_t>(count * options_.scale));
}

void Suite::Add(Round round, std::optional<double> others_cores) {
  round.others_cores_ = others_cores;
  rounds_.push_back(std::move(round));
}

absl::Status Suite::Run(const std::function<absl::Status(Round&)>& measure) {
  BATON_RETURN_IF_ERROR(MeasureRounds(options_.rounds, measure));
  for (uint32_t times = 1; times < kMostTimesRounds && IsWorseThanRecorded(); ++times) {
    std::fprintf(stderr, "%s: worse than recorded, so it is measured again\n", name_.c_str());
    BATON_RETURN_IF_ERROR(MeasureRounds(options_.rounds, measure));
  }
  return absl::OkStatus();
}

int Suite::RunToExit(const std::function<absl::Status(Round&)>& measure) {
  absl::Status status = Run(measure);
  if (status.ok()) status = Report();
  return ExitCode(name_, status);
}

// Report() returns the errors of the file of records.
bool Suite::IsWorseThanRecorded() const {
  if (options_.recorded.empty()) return false;
  const absl::StatusOr<Comparison> comparison = ReadAndCompare(options_.recorded);
  return comparison.ok() && !comparison->worse.empty();
}

absl::Status Suite::MeasureRounds(uint32_t count,
                                  const std::function<absl::Status(Round&)>& measure) {
  const size_t end = rounds_.size() + count;
  while (rounds_.size() < end) {
    Round round(static_cast<uint32_t>(rounds_.size()));
    const MachineTimes before = ReadMachineTimes();
    BATON_RETURN_IF_ERROR(measure(round));
    const std::optional<double> others = ReadMachineTimes().OthersSince(before);
    std::fprintf(
        stderr, "%s: round %zu of %zu; others used %s cores\n", name_.c_str(), rounds_.size() + 1,
        end,
        others.has_value() ? absl::StrFormat("%.2f", *others).c_str() : "nobody knows how many");
    Add(std::move(round), others);
  }
  return absl::OkStatus();
}

size_t Suite::quiet_rounds() const {
  return static_cast<size_t>(std::count_if(rounds_.begin(), rounds_.end(), [](const Round& round) {
    return IsQuiet(round.others_cores_);
  }));
}

bool Suite::QuietRoundsCount() const {
  return quiet_rounds() > 0 && kRoundsOfAQuietOne * quiet_rounds() >= rounds_.size();
}

bool Suite::HasUnknownRound() const {
  return std::any_of(rounds_.begin(), rounds_.end(),
                     [](const Round& round) { return !round.others_cores_.has_value(); });
}

std::optional<std::vector<double>> Suite::ValuesThatCount(
    const std::function<std::optional<double>(const Round&)>& value) const {
  const bool quiet = QuietRoundsCount();
  std::vector<double> values;
  for (const Round& round : rounds_) {
    if (quiet && !IsQuiet(round.others_cores_)) continue;
    const std::optional<double> one = value(round);
    if (!one.has_value()) return std::nullopt;
    values.push_back(*one);
  }
  return values;
}

std::optional<double> Suite::MedianOf(std::string_view figure) const {
  Over over = Over::kMedian;
  for (const Round& round : rounds_) {
    if (const auto found = round.values_.find(figure); found != round.values_.end()) {
      over = found->second.over;
    }
  }
  std::optional<std::vector<double>> values =
      ValuesThatCount([&](const Round& round) { return round.Of(figure); });
  if (!values.has_value()) return std::nullopt;
  return Quantile(*values, over == Over::kLargest ? 1 : 0.5);
}

std::optional<double> Suite::MedianOf(const Ratio& ratio) const {
  std::optional<std::vector<double>> values =
      ValuesThatCount([&](const Round& round) { return ValueOf(ratio, round); });
  return values.has_value() ? Quantile(*values, 0.5) : std::nullopt;
}

std::optional<Spread> Suite::SpreadOf(const Ratio& ratio) const {
  std::optional<std::vector<double>> values =
      ValuesThatCount([&](const Round& round) { return ValueOf(ratio, round); });
  if (!values.has_value() || values->size() < kRoundsOfSpread) return std::nullopt;
  return Spread{Quantile(*values, 0.25).value(), Quantile(*values, 0.75).value()};
}

std::string Suite::ToTable() const {
  std::string text;
  for (const Ratio& ratio : ratios_) {
    const std::optional<double> value = MedianOf(ratio);
    if (!value.has_value()) {
      absl::StrAppendFormat(&text, "%-44s NOT MEASURED\n", ratio.name);
      continue;
    }
    absl::StrAppendFormat(&text, "%-44s %9.3f %18s   %s", ratio.name, *value,
                          ToText(SpreadOf(ratio)), NameOf(ratio.better));
    if (ratio.bar > 0) {
      absl::StrAppendFormat(&text, "; %s %g: %s",
                            ratio.better == Better::kLess ? "at most" : "at least", ratio.bar,
                            KeepsTo(ratio, *value, ratio.bar) ? "met" : "NOT MET");
    }
    text += '\n';
  }
  text += '\n';
  if (!rounds_.empty()) {
    for (const std::string& figure : rounds_[0].order_) {
      const std::optional<double> value = MedianOf(figure);
      absl::StrAppendFormat(&text, "%-44s %12s   %s\n", figure,
                            value.has_value() ? absl::StrFormat("%.3f", *value) : "NOT MEASURED",
                            rounds_[0].values_.find(figure)->second.unit);
    }
  }
  absl::StrAppendFormat(&text, "\n%d rounds, %d of them quiet (others used less than %.1f cores)",
                        rounds_.size(), quiet_rounds(), kQuietCores);
  if (!QuietRoundsCount()) {
    text += ": TOO FEW, so these figures are those of a machine that others used";
  }
  for (const auto& [condition, value] : conditions_) {
    absl::StrAppend(&text, "; ", condition, ": ", value);
  }
  utsname name = {};
  uname(&name);
  absl::StrAppendFormat(&text, "; Linux %s, %d cores%s\n", name.release, demo::UsableCores(),
                        std::getenv("BATON_VM") != nullptr ? ", emulated" : "");
  return text;
}

std::string Suite::ToJson() const {
  ordered_json ratios = ordered_json::object(), figures = ordered_json::object();
  for (const Ratio& ratio : ratios_) {
    ordered_json& json = ratios[ratio.name];
    json = {{"value", JsonOf(MedianOf(ratio))},
            {"of", ratio.of},
            {"to", ratio.to},
            {"better", ratio.better == Better::kLess ? "less" : "more"}};
    if (ratio.bar > 0) json["bar"] = ratio.bar;
    if (const std::optional<Spread> spread = SpreadOf(ratio)) {
      json["low"] = spread->low;
      json["high"] = spread->high;
    }
  }
  if (!rounds_.empty()) {
    for (const std::string& figure : rounds_[0].order_) {
      figures[figure] = {{"value", JsonOf(MedianOf(figure))},
                         {"unit", rounds_[0].values_.find(figure)->second.unit}};
    }
  }
  ordered_json rounds = ordered_json::array();
  for (const Round& round : rounds_) {
    ordered_json json = {{"others_cores", JsonOf(round.others_cores_)},
                         {"quiet", IsQuiet(round.others_cores_)}};
    for (const std::string& figure : round.order_) json[figure] = JsonOf(round.Of(figure));
    rounds.push_back(std::move(json));
  }
  ordered_json conditions = ordered_json::object();
  for (const auto& [condition, value] : conditions_) conditions[condition] = value;
  utsname name = {};
  uname(&name);
  const ordered_json json = {{"benchmark", name_},
                             {"conditions", conditions},
                             {"ratios", ratios},
                             {"figures", figures},
                             {"rounds", rounds_.size()},
                             {"quiet_rounds", quiet_rounds()},
                             {"each_round", rounds},
                             {"kernel", std::string(name.release)},
                             {"cores", demo::UsableCores()},
                             {"virtual_machine", std::getenv("BATON_VM") != nullptr}};
  return json.dump();
}

std::string Suite::ToRecords() const {
  std::string text;
  for (const Ratio& ratio : ratios_) {
    const std::optional<double> value = MedianOf(ratio);
    if (!QuietRoundsCount() || !value.has_value() || *value <= 0) {
      absl::StrAppend(&text, "# ", name_, " ", ratio.name, ": not measured\n");
      continue;
    }
    absl::StrAppendFormat(&text, "%s %s %.4g", name_, ratio.name, *value);
    const std::optional<Spread> spread = SpreadOf(ratio);
    if (spread.has_value() && spread->low > 0) {
      absl::StrAppendFormat(&text, " %.4g %.4g", spread->low, spread->high);
    }
    text += '\n';
  }
  return text;
}

absl::Status Suite::Report() const {
  std::fputs(ToTable().c_str(), stdout);
  if (options_.print_record) std::fputs(ToRecords().c_str(), stdout);
  std::fflush(stdout);
  if (!options_.output.empty()) BATON_RETURN_IF_ERROR(WriteFiles());
  const absl::Status kept =
      options_.recorded.empty() ? absl::OkStatus() : CompareWith(options_.recorded);
  return Both(kept, options_.check ? Check() : absl::OkStatus());
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
      const double y = MedianOf(figure).value_or(0);
      if (y > 0) absl::StrAppend(&points, x, " ", y, "\n");
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

absl::StatusOr<Suite::Comparison> Suite::ReadAndCompare(const std::string& recorded) const {
  BATON_ASSIGN_OR_RETURN(const std::vector<Record> records, ReadRecords(recorded));
  bool any = false;
  Comparison comparison;
  for (const Record& record : records) {
    if (record.suite != name_) continue;
    any = true;
    const auto ratio = std::find_if(ratios_.begin(), ratios_.end(),
                                    [&](const Ratio& one) { return one.name == record.ratio; });
    if (ratio == ratios_.end()) {
      comparison.missing.push_back(record.ratio + " is recorded, and no ratio of the suite");
      continue;
    }
    const std::optional<double> value = MedianOf(*ratio);
    if (!value.has_value()) {
      comparison.missing.push_back(record.ratio + " was not measured");
      continue;
    }
    std::string why = WhyWorse(*ratio, record, *value, SpreadOf(*ratio));
    if (!why.empty()) comparison.worse.push_back(std::move(why));
  }
  if (!any)
    return absl::NotFoundError(absl::StrCat(recorded, " has no ratio of the suite ", name_));
  return comparison;
}

absl::Status Suite::CompareWith(const std::string& recorded) const {
  BATON_ASSIGN_OR_RETURN(const Comparison comparison, ReadAndCompare(recorded));
  absl::Status judged;
  const std::string worse = absl::StrJoin(comparison.worse, "; ");
  if (!worse.empty() && QuietRoundsCount()) {
    judged = absl::OutOfRangeError("worse than recorded: " + worse);
  } else if (!worse.empty() && HasUnknownRound()) {
    judged = NotMeasuredError(
        absl::StrCat("whether others used the machine is not known of all rounds, and ", worse));
  } else if (!worse.empty()) {
    // By this text tests/expected_skips.txt knows a run that is to be excused.
    judged = NotMeasuredError(absl::StrCat("undecided: others used the machine in ",
                                           rounds_.size() - quiet_rounds(), " of ", rounds_.size(),
                                           " rounds, and ", worse));
  }
  // The message names missing figures first: it starts with "undecided" only if none is missing.
  return Both(comparison.missing.empty()
                  ? absl::OkStatus()
                  : NotMeasuredError(absl::StrJoin(comparison.missing, "; ")),
              judged);
}

absl::Status Suite::Check() const {
  if (!QuietRoundsCount()) {
    return NotMeasuredError(
        "too few rounds were quiet, so no bar was checked: run it again when others leave the "
        "machine "
        "alone, or with more --rounds");
  }
  bool any = false;
  std::vector<std::string> not_met, missing;
  for (const Ratio& ratio : ratios_) {
    any = any || ratio.bar > 0;
    const std::optional<double> value = MedianOf(ratio);
    if (!value.has_value()) {
      missing.push_back(ratio.name + " was not measured");
    } else if (ratio.bar > 0 && !KeepsTo(ratio, *value, ratio.bar)) {
      not_met.push_back(absl::StrCat(ratio.name, " is ", *value, ", and should be ",
                                     ratio.better == Better::kLess ? "at most " : "at least ",
                                     ratio.bar));
    }
  }
  if (!any) missing.emplace_back("nothing that was to be measured has a bar");
  return Both(not_met.empty() ? absl::OkStatus()
                              : absl::OutOfRangeError(absl::StrCat("bars are not met: ",
                                                                   absl::StrJoin(not_met, "; "))),
              missing.empty() ? absl::OkStatus() : NotMeasuredError(absl::StrJoin(missing, "; ")));
}

namespace {

constexpr const char* kSleeps = "voluntary_ctxt_switches:";

void AddThread(const std::string& directory, Cost* cost) {
  // Nanoseconds on a processor and waiting for one (Documentation/scheduler/sched-stats.rst).
  std::ifstream schedule(directory + "/schedstat");
  double running = 0, waiting = 0;
  schedule >> running >> waiting;
  cost->running_us += running * 1e-3;
  cost->waiting_us += waiting * 1e-3;
  std::ifstream status(directory + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(kSleeps, 0) == 0) cost->sleeps += std::strtod(line.c_str() + 24, nullptr);
  }
}

// With the children of each thread; each process once.
void AddProcess(pid_t pid, std::set<pid_t>* added, Cost* cost) {
  if (!added->insert(pid).second) return;
  std::error_code error;
  const std::string threads = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(threads, error)) {
    AddThread(thread.path().string(), cost);
    std::ifstream children(thread.path().string() + "/children");
    for (pid_t child = 0; children >> child;) AddProcess(child, added, cost);
  }
}

}  // namespace

Cost ReadCost(const std::vector<pid_t>& processes) {
  Cost cost;
  std::set<pid_t> added;
  for (const pid_t pid : processes) AddProcess(pid, &added, &cost);
  return cost;
}

MachineTimes ReadMachineTimes() {
  MachineTimes times;
  // deploy/vm/run_vm.sh writes seconds, ticks of all, and ticks of the machine.
  if (const char* const path = std::getenv("BATON_VM_HOST_CPU")) {
    std::ifstream file(path);
    double all = 0, ours = 0;
    if (file >> times.wall >> all >> ours) {
      times.others = (all - ours) / static_cast<double>(sysconf(_SC_CLK_TCK));
    }
    return times;
  }
  const demo::CpuTimes read = demo::ReadCpuTimes();
  return {read.wall, read.machine - read.ours};
}

}  // namespace baton::bench
