// A suite of the benchmark: what it measures in each round, and what came of it, ratios first.
//
// A round measures every side once, in turns, so that what the machine does meanwhile is the same
// for all. A ratio is the median of the rounds' ratios; rounds in which others used the processors
// do not count where enough of them are quiet. What was not measured has no value: never 0, and
// never that of the rounds which have it.
//
// Thread-compatible.
#ifndef TESTS_BENCH_SUITE_H_
#define TESTS_BENCH_SUITE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/harness/quantile.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {

// In which others used less of the machine than this, in cores, a round counts as quiet.
inline constexpr double kQuietCores = 0.1;

// Quiet rounds count alone where one of so many rounds is quiet. Fewer are chance: all rounds
// count.
inline constexpr size_t kRoundsOfAQuietOne = 3;

// The quartiles of fewer rounds say nothing: of four, they are the least and the last but one.
inline constexpr size_t kRoundsOfSpread = 5;
// A suite that is worse than recorded measures again, until it has so many times its rounds.
inline constexpr uint32_t kMostTimesRounds = 3;

enum class Better : uint8_t { kLess, kMore };

// Says what a suite makes of the values that a figure has in the rounds that count.
enum class Over : uint8_t { kMedian, kLargest };

// The quartiles of a ratio's rounds: half of the rounds are between them.
struct Spread {
  double low = 0;
  double high = 0;
};

// Divides two figures of one round. It has no value if one of them is missing, if the divisor is
// not positive, or if less is better and the dividend is not positive: nothing takes no time.
struct Ratio {
  std::string name;
  std::string of;
  std::string to;  // empty: the figure itself has a bar
  Better better = Better::kLess;
  double bar = 0;  // that it should keep to; 0: there is none
};

// A figure of every round, over x.
struct Line {
  std::string title;
  std::vector<std::pair<double, std::string>> points;  // x, figure
};
struct Plot {
  std::string name;  // of the file
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Line> lines;
};

struct SuiteOptions {
  uint32_t rounds = 5;
  double scale = 1;  // of the numbers of operations
  std::string output;
  // File of records. Its header specifies the format and when a ratio counts as worse.
  std::string recorded;
  bool print_record = false;  // prints a line for that file for each ratio
  // A bar that is not met is an error, and so is what was not measured.
  bool check = false;
};
void AddSuiteOptions(examples::Flags& flags, SuiteOptions* options);

// Exit statuses of a suite.
inline constexpr int kExitFailed = 1;       // a bar is not met, or something went wrong
inline constexpr int kExitNotMeasured = 3;  // too few quiet rounds, or a figure is missing

// An error that ends the program with kExitNotMeasured.
absl::Status NotMeasuredError(std::string_view message);
bool IsNotMeasured(const absl::Status& status);

// Returns the program's exit status. Writes to standard error what went wrong.
int ExitCode(std::string_view suite, const absl::Status& status);

class Round {
 public:
  explicit Round(uint32_t number) : number_(number) {}
  uint32_t number() const { return number_; }  // from 0 on

  // No value, or one that is not finite: it was not measured.
  void Set(std::string_view figure, std::optional<double> value, std::string_view unit,
           Over over = Over::kMedian);
  std::optional<double> Of(std::string_view figure) const;

 private:
  friend class Suite;
  struct Value {
    std::optional<double> value;
    std::string unit;
    Over over = Over::kMedian;
  };
  uint32_t number_;
  std::optional<double> others_cores_;
  std::vector<std::string> order_;
  std::map<std::string, Value, std::less<>> values_;
};

class Suite {
 public:
  Suite(std::string name, SuiteOptions options)
      : name_(std::move(name)), options_(std::move(options)) {}

  const SuiteOptions& options() const { return options_; }
  uint32_t Scaled(uint32_t count, uint32_t least = 1) const;

  // Says under which condition all rounds are measured, for the table and for JSON.
  void Note(std::string condition, std::string value) {
    conditions_.emplace_back(std::move(condition), std::move(value));
  }
  void Compare(Ratio ratio) { ratios_.push_back(std::move(ratio)); }
  void Draw(Plot plot) { plots_.push_back(std::move(plot)); }

  // Measures options().rounds rounds. If a ratio is worse than recorded afterwards, measures as
  // many again and judges all of them, until no ratio is worse or kMostTimesRounds is reached.
  absl::Status Run(const std::function<absl::Status(Round&)>& measure);
  // Runs and reports. Returns the exit status of the program.
  int RunToExit(const std::function<absl::Status(Round&)>& measure);
  // A round of which nobody knows what others used is not quiet.
  void Add(Round round, std::optional<double> others_cores);

  // Return the median of the rounds that count, or the largest of a figure that was set so (Over).
  // Return nothing if one of these rounds has no value.
  std::optional<double> MedianOf(std::string_view figure) const;
  std::optional<double> MedianOf(const Ratio& ratio) const;
  // Returns the quartiles of the rounds that count. Returns nothing if these rounds are fewer than
  // kRoundsOfSpread, or if one of them has no value.
  std::optional<Spread> SpreadOf(const Ratio& ratio) const;
  size_t quiet_rounds() const;

  std::string ToTable() const;
  std::string ToJson() const;
  // Returns a line for the file of records for each ratio. Where too few rounds are quiet, or a
  // ratio has no value, it gets a comment instead.
  std::string ToRecords() const;
  // The table to standard output; JSON and plots to options().output. An error: the files cannot be
  // written, or what is recorded or checked was not kept to, or not measured.
  absl::Status Report() const;
  // Returns kOutOfRange if a ratio is worse than recorded. Returns an error of IsNotMeasured() if a
  // recorded ratio was not measured, or if a ratio is worse and too few rounds were quiet. The
  // message of the latter starts with "undecided: others used the machine in ".
  absl::Status CompareWith(const std::string& recorded) const;
  // Whether all bars are met.
  absl::Status Check() const;

 private:
  // Messages, one for each ratio.
  struct Comparison {
    std::vector<std::string> worse;
    std::vector<std::string> missing;
  };

  absl::Status MeasureRounds(uint32_t count, const std::function<absl::Status(Round&)>& measure);
  bool IsWorseThanRecorded() const;
  absl::StatusOr<Comparison> ReadAndCompare(const std::string& recorded) const;
  // Returns the values of the rounds that count. Returns nothing if one of them has no value.
  bool QuietRoundsCount() const;
  bool HasUnknownRound() const;
  std::optional<std::vector<double>> ValuesThatCount(
      const std::function<std::optional<double>(const Round&)>& value) const;
  absl::Status WriteFiles() const;
  absl::Status WritePlot(const Plot& plot) const;

  const std::string name_;
  const SuiteOptions options_;
  std::vector<std::pair<std::string, std::string>> conditions_;  // name, value
  std::vector<Ratio> ratios_;
  std::vector<Plot> plots_;
  std::vector<Round> rounds_;
};

// How long operations took.
struct Timing {
  double seconds = 0;  // of all
  double p50_us = 0;   // of one
  double p99_us = 0;
  double p999_us = 0;
};

// `took_ns`: of each, and reordered. An error: there are none.
inline absl::StatusOr<Timing> TimingOf(uint64_t all_ns, std::vector<uint32_t>& took_ns) {
  if (took_ns.empty()) return absl::InternalError("no operation was timed");
  return Timing{static_cast<double>(all_ns) * 1e-9, *Quantile(took_ns, 0.5) * 1e-3,
                *Quantile(took_ns, 0.99) * 1e-3, *Quantile(took_ns, 0.999) * 1e-3};
}

// ---- What the servers take of the processors, and what others on the machine take.

// The cost of some processes and their children, with all their threads, since they began.
struct Cost {
  double running_us = 0;
  double waiting_us = 0;  // for a processor
  double sleeps = 0;      // times that a thread gave its processor up

  Cost operator-(const Cost& before) const {
    return {running_us - before.running_us, waiting_us - before.waiting_us, sleeps - before.sleeps};
  }
};
Cost ReadCost(const std::vector<pid_t>& processes);

// Processor time in seconds since some start. In the virtual machine: the host's, of which all that
// the machine does not take is others'; it is told there once a second.
struct MachineTimes {
  double wall = 0;
  double others = 0;

  // None: one of the two was not told, or there is no time between them.
  std::optional<double> OthersSince(const MachineTimes& before) const {
    if (before.wall <= 0 || wall <= before.wall) return std::nullopt;
    return (others - before.others) / (wall - before.wall);
  }
};
MachineTimes ReadMachineTimes();

}  // namespace baton::bench

#endif  // TESTS_BENCH_SUITE_H_
