#include "tests/bench/report.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/quantile.h"
#include "worker/examples/common/json_line.h"

namespace baton::bench {
namespace {

using examples::JsonLine;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

bool IsQuiet(const Round& round) { return round.others_cores < kQuietCores; }

size_t QuietRounds(const Results& results) {
  return static_cast<size_t>(std::count_if(results.rounds.begin(), results.rounds.end(), IsQuiet));
}

double Median(const Results& results, const std::function<double(const Round&)>& value) {
  const bool any = QuietRounds(results) == 0;
  std::vector<double> values;
  for (const Round& round : results.rounds) {
    if (any || IsQuiet(round)) values.push_back(value(round));
  }
  return Quantile(values, 0.5);
}

double MedianCost(const Results& results, size_t workload, SideName side, double Sample::*cost) {
  return Median(results, [&](const Round& round) { return round.Of(workload, side).*cost; });
}

double Divide(double value, double by) { return by > 0 ? value / by : 0; }

std::string Quietness(const Results& results) {
  const size_t quiet = QuietRounds(results);
  std::string text =
      absl::StrFormat("%d rounds, %d of them quiet (others used less than %.1f cores)",
                      results.rounds.size(), quiet, kQuietCores);
  if (quiet == 0) text += ": NONE, so these figures are those of a machine that others used";
  return text;
}

JsonLine SampleJson(const Results& results, size_t workload, SideName side) {
  JsonLine json;
  for (const auto& [name, value] :
       {std::pair<const char*, double Sample::*>{"p50_us", &Sample::p50_us},
        {"p99_us", &Sample::p99_us},
        {"per_second", &Sample::per_second},
        {"server_running_us", &Sample::running_us},
        {"server_waiting_us", &Sample::waiting_us},
        {"server_sleeps", &Sample::sleeps}}) {
    json.Number(name, MedianCost(results, workload, side, value));
  }
  return json;
}

JsonLine RoundJson(const Round& round) {
  JsonLine json;
  json.Number("others_cores", round.others_cores).Flag("quiet", IsQuiet(round));
  for (const Metric& metric : kMetrics) {
    JsonLine sides;
    for (const SideName side : kSides) {
      sides.Number(NameOf(side), round.Of(metric.workload, side).*metric.value * metric.factor);
    }
    json.Raw(metric.name, sides.Finish());
  }
  return json;
}

}  // namespace

double MedianOf(const Results& results, const Metric& metric, SideName side) {
  return MedianCost(results, metric.workload, side, metric.value) * metric.factor;
}

double MedianRatio(const Results& results, const Metric& metric, SideName side,
                   SideName reference) {
  return Median(results, [&](const Round& round) {
    return Divide(round.Of(metric.workload, side).*metric.value,
                  round.Of(metric.workload, reference).*metric.value);
  });
}

std::string ToTable(const Results& results) {
  std::string text;
  for (const SideName side : kWorkerSides) {
    absl::StrAppendFormat(&text, "%-16s %12s %12s\n", absl::StrCat(View(NameOf(side)), " to raw"),
                          "polling", "events");
    for (const Metric& metric : kMetrics) {
      absl::StrAppendFormat(&text, "%-16s %12.2f %12.2f   %s\n", metric.name,
                            MedianRatio(results, metric, side, SideName::kPolling),
                            MedianRatio(results, metric, side, SideName::kEvents),
                            metric.more_is_better ? "more is better" : "less is better");
    }
    text += '\n';
  }
  absl::StrAppendFormat(&text, "%-16s", "");
  for (const SideName side : kSides) absl::StrAppendFormat(&text, " %12s", NameOf(side));
  text += '\n';
  for (const Metric& metric : kMetrics) {
    absl::StrAppendFormat(&text, "%-16s", metric.name);
    for (const SideName side : kSides) {
      absl::StrAppendFormat(&text, " %12.1f", MedianOf(results, metric, side));
    }
    absl::StrAppendFormat(&text, "   %s\n", metric.unit);
  }
  absl::StrAppendFormat(&text, "\n%-22s %s\n", "per operation, server",
                        "processor us, us of waiting for one, sleeps");
  for (size_t i = 0; i < kWorkloads.size(); ++i) {
    absl::StrAppendFormat(&text, "%-22s", kWorkloads[i].name);
    for (const SideName side : kSides) {
      absl::StrAppendFormat(&text, "  %s %.1f, %.1f, %.2f;", NameOf(side),
                            MedianCost(results, i, side, &Sample::running_us),
                            MedianCost(results, i, side, &Sample::waiting_us),
                            MedianCost(results, i, side, &Sample::sleeps));
    }
    text.back() = '\n';
  }
  for (const auto& [name, value] : results.reference) {
    absl::StrAppendFormat(&text, "beside: %s %.1f\n", name, value);
  }
  absl::StrAppendFormat(&text, "%s; Linux %s, %d cores%s\n", Quietness(results), results.kernel,
                        results.cores, results.virtual_machine ? ", emulated" : "");
  return text;
}

std::string ToJson(const Results& results) {
  JsonLine json, ratios, sides, reference;
  for (const SideName side : kWorkerSides) {
    JsonLine of_side;
    for (const Metric& metric : kMetrics) {
      of_side.Raw(metric.name,
                  JsonLine()
                      .Number("to_polling", MedianRatio(results, metric, side, SideName::kPolling))
                      .Number("to_events", MedianRatio(results, metric, side, SideName::kEvents))
                      .Flag("more_is_better", metric.more_is_better)
                      .Finish());
    }
    ratios.Raw(NameOf(side), of_side.Finish());
  }
  for (const SideName side : kSides) {
    JsonLine workloads;
    for (size_t i = 0; i < kWorkloads.size(); ++i) {
      workloads.Raw(kWorkloads[i].name, SampleJson(results, i, side).Finish());
    }
    JsonLine metrics;
    for (const Metric& metric : kMetrics) {
      metrics.Number(metric.name, MedianOf(results, metric, side));
    }
    sides.Raw(
        NameOf(side),
        JsonLine().Raw("metrics", metrics.Finish()).Raw("workloads", workloads.Finish()).Finish());
  }
  for (const auto& [name, value] : results.reference) reference.Number(name, value);
  JsonLine units;
  for (const Metric& metric : kMetrics) units.Text(metric.name, metric.unit);
  std::string rounds = "[";
  for (const Round& round : results.rounds) {
    if (rounds.size() > 1) rounds += ',';
    rounds += RoundJson(round).Finish();
  }
  json.Text("benchmark", "rdma")
      .Raw("ratios", ratios.Finish())
      .Raw("units", units.Finish())
      .Raw("sides", sides.Finish())
      .Count("rounds", results.rounds.size())
      .Count("quiet_rounds", QuietRounds(results))
      .Raw("each_round", rounds + "]")
      .Raw("reference", reference.Finish())
      .Text("kernel", results.kernel)
      .Count("cores", results.cores)
      .Flag("virtual_machine", results.virtual_machine);
  return json.Finish();
}

}  // namespace baton::bench
