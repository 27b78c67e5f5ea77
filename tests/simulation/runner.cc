#include "tests/simulation/runner.h"

#include <signal.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::simulation {
namespace {

void OnSignal(int number) {
  PrintCurrentSchedule();
  signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

void ReportCrashes() {
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM}) signal(number, OnSignal);
}

RunSummary RunSchedules(const RunOptions& options) {
  using std::chrono::duration;
  using std::chrono::steady_clock;
  RunSummary summary;
  const auto start = steady_clock::now();
  const auto spent = [&] { return duration<double>(steady_clock::now() - start).count(); };
  while (summary.schedules < options.schedules &&
         summary.broken.size() < options.stop_after_broken &&
         (options.seconds == 0 || spent() < options.seconds)) {
    const uint64_t seed = options.first_seed + summary.schedules++;
    const ScheduleResult result =
        RunSchedule({seed, options.deep, options.brokers, options.defects, options.show_trace});
    summary.sum.hash ^= result.hash;
    summary.sum.steps += result.steps;
    summary.sum.commits += result.commits;
    summary.sum.cuts += result.cuts;
    summary.sum.kills += result.kills;
    summary.sum.fenced += result.fenced;
    summary.sum.poisonings += result.poisonings;
    summary.sum.replies += result.replies;
    summary.sum.driver_deaths += result.driver_deaths;
    summary.sum.resumed += result.resumed;
    summary.sum.answers += result.answers;
    summary.sum.markers += result.markers;
    summary.sum.spares += result.spares;
    summary.last_trace = result.trace;
    if (!result.broken.empty()) summary.broken.push_back({seed, result});
  }
  summary.seconds = spent();
  return summary;
}

std::string Describe(const RunSummary& summary) {
  std::string text;
  for (const Broken& broken : summary.broken) {
    absl::StrAppend(&text, broken.result.trace, "seed ", broken.seed, ": ", broken.result.broken,
                    "\nagain: simulate --seed ", broken.seed, "\n");
  }
  const ScheduleResult& sum = summary.sum;
  absl::StrAppend(
      &text,
      absl::StrFormat(
          "%d schedules in %.1f s, %.0f per second: %d steps, %d commits, %d changes "
          "of owner, %d kills, %d fenced, %d poisoned, %d replies; %d deaths of drivers, %d "
          "transactions resumed, %d answers of the device, %d markers, %d spares; %d broken; trace "
          "%016x\n",
          summary.schedules, summary.seconds,
          static_cast<double>(summary.schedules) / summary.seconds, sum.steps, sum.commits,
          sum.cuts, sum.kills, sum.fenced, sum.poisonings, sum.replies, sum.driver_deaths,
          sum.resumed, sum.answers, sum.markers, sum.spares, summary.broken.size(), sum.hash));
  return text;
}

}  // namespace baton::simulation
