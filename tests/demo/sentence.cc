// The sentence at the end of the demonstration.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/demo/numbers.h"
#include "tests/demo/report.h"

namespace baton::demo {
namespace {

// Returns "78 times", or of a demonstration that failed "12 of 78 times".
std::string Times(const DemoResult& result) {
  size_t ok = 0, wanted = 0;
  for (const auto& [kind, count] : result.options.Wanted()) {
    ok += Summarize(result.baton.events, kind).ok;
    wanted += count;
  }
  const char* const times = wanted == 1 ? " time" : " times";
  return ok == wanted ? absl::StrCat(wanted, times) : absl::StrCat(ok, " of ", wanted, times);
}

std::string Silences(const DemoResult& result) {
  std::vector<std::string> silences;
  for (const auto& [kind, where] : {std::pair(EventKind::kHandoff, "at a planned handoff"),
                                    {EventKind::kUpgrade, "at an upgrade"},
                                    {EventKind::kCrashHot, "at a kill with a standby ready"},
                                    {EventKind::kCrashCold, "at a kill without one"},
                                    {EventKind::kHang, "at a hang"},
                                    {EventKind::kKeeperKill, "at a kill of the keeper"},
                                    {EventKind::kBatonUpgrade, "at an upgrade of Baton"},
                                    {EventKind::kBatondKill, "at a kill of batond"}}) {
    const BlackoutStatistics statistics = Summarize(result.baton.events, kind);
    if (statistics.count == 0) continue;
    silences.push_back(absl::StrCat(Milliseconds(statistics.max_us), " ", where));
  }
  return silences.empty() ? "" : "; the longest silence was " + absl::StrJoin(silences, ", ");
}

// Without Baton.
std::string Comparison(const DemoResult& result) {
  const ActResult& act = result.baseline;
  const BlackoutStatistics kills = Summarize(act.events, EventKind::kBaseline);
  if (kills.count == 0 || !act.peer_finished) return "";
  return absl::StrFormat(
      "; without Baton, %d %s ended %d connections and made silences of up to %s", kills.count,
      kills.count == 1 ? "kill" : "kills", act.peer.Count("disconnects"),
      Milliseconds(kills.max_us));
}

// Returns what the peer counted, as far as it is not as it should be; "" when all is.
std::string Defects(const harness::JsonObject& peer) {
  std::vector<std::string> defects;
  for (const auto& [name, text] : {std::pair("lost", "lost"),
                                   {"duplicated", "answered twice"},
                                   {"reordered", "out of order"},
                                   {"corrupt", "corrupt"},
                                   {"wrong_total", "with a wrong total"},
                                   {"disconnects", "peers disconnected"}}) {
    const uint64_t count = peer.Count(name);
    if (count > 0) defects.push_back(absl::StrCat(Grouped(count), " ", text));
  }
  return absl::StrJoin(defects, ", ");
}

std::string FirstProblem(const ActResult& act) {
  const auto found = std::find_if(act.events.begin(), act.events.end(),
                                  [](const Event& event) { return !event.problem.empty(); });
  if (found != act.events.end()) {
    return absl::StrCat(EventTitle(found->kind), ": ", found->problem);
  }
  return std::string(act.status.message());
}

std::string WhatFailed(const DemoResult& result) {
  const ActResult& act = result.baton;
  std::string text = absl::StrFormat(
      "It FAILED: %s the service was replaced, killed or stopped under %d connections as expected",
      Times(result), result.options.connections);
  if (act.peer_finished) {
    const std::string defects = Defects(act.peer);
    absl::StrAppend(&text, "; ", Grouped(act.peer.Count("messages")), " messages",
                    defects.empty() ? ", none lost" : ": " + defects);
  } else {
    text += "; what became of the messages is not known";
  }
  const std::string problem = FirstProblem(act);
  if (!problem.empty()) absl::StrAppend(&text, "; first problem: ", problem);
  return text + ".";
}

}  // namespace

std::string ToSentence(const DemoResult& result) {
  if (!IsBatonOk(result)) return WhatFailed(result);
  return absl::StrCat(Times(result), " the service was replaced, killed or stopped under ",
                      result.options.connections,
                      " connections: ", Grouped(result.baton.peer.Count("messages")),
                      " messages, none lost, none twice, none out of order, no peer disconnected",
                      Silences(result), Comparison(result), ".");
}

}  // namespace baton::demo
