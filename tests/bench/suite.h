// A suite of the benchmark: what it measures in each round, and what came of it, ratios first.
//
// A round measures every side once, in turns, so that what the machine does meanwhile is the same
// for all. A ratio is the median of the rounds' ratios; rounds in which others used the processors
// do not count while there are quiet ones. What was not measured has no value: never 0, and never
// that of the rounds which have it.
//
// Thread-compatible.
#ifndef TESTS_BENCH_SUITE_H_
#define TESTS_BENCH_SUITE_H_

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

namespace CLI {
class App;
}

namespace baton::bench {

// In which others used less of the machine than this, in cores, a round counts as quiet.
inline constexpr double kQuietCores = 0.1;

enum class Better : uint8_t { kLess, kMore };

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
  // Lines "suite ratio value": a ratio twice as bad as there is an error.
  std::string recorded;
  // A bar that is not met is an error, and so is what was not measured.
  bool check = false;
};
void AddSuiteOptions(CLI::App& app, SuiteOptions* options);

// Exit statuses of a suite.
inline constexpr int kExitFailed = 1;       // a bar is not met, or something went wrong
inline constexpr int kExitNotMeasured = 3;  // no round was quiet, or a figure is missing

// An error that ends the program with kExitNotMeasured.
absl::Status NotMeasuredError(std::string_view message);
bool IsNotMeasured(const absl::Status& status);

// Of the program; what went wrong is said on standard error.
int ExitCode(std::string_view suite, const absl::Status& status);

class Round {
 public:
  explicit Round(uint32_t number) : number_(number) {}
  uint32_t number() const { return number_; }  // from 0 on

  // No value, or one that is not finite: it was not measured.
  void Set(std::string_view figure, std::optional<double> value, std::string_view unit);
  std::optional<double> Of(std::string_view figure) const;

 private:
  friend class Suite;
  struct Value {
    std::optional<double> value;
    std::string unit;
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

  void Compare(Ratio ratio) { ratios_.push_back(std::move(ratio)); }
  void Draw(Plot plot) { plots_.push_back(std::move(plot)); }

  absl::Status Run(const std::function<absl::Status(Round&)>& measure);
  // A round of which nobody knows what others used is not quiet.
  void Add(Round round, std::optional<double> others_cores);

  // Medians of the rounds that count; none when one of them has no value.
  std::optional<double> MedianOf(std::string_view figure) const;
  std::optional<double> MedianOf(const Ratio& ratio) const;
  size_t quiet_rounds() const;

  std::string ToTable() const;
  std::string ToJson() const;
  // The table to standard output; JSON and plots to options().output. An error: the files cannot be
  // written, or what is recorded or checked was not kept to, or not measured.
  absl::Status Report() const;
  absl::Status CompareWith(const std::string& recorded) const;
  // Whether all bars are met.
  absl::Status Check() const;

 private:
  std::optional<double> Median(
      const std::function<std::optional<double>(const Round&)>& value) const;
  absl::Status WriteFiles() const;
  absl::Status WritePlot(const Plot& plot) const;

  const std::string name_;
  const SuiteOptions options_;
  std::vector<Ratio> ratios_;
  std::vector<Plot> plots_;
  std::vector<Round> rounds_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_SUITE_H_
