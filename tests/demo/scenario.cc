#include "tests/demo/scenario.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/harness/quantile.h"

namespace baton::demo {
namespace {

bool Parse(const char* line, Bucket* bucket) {
  Counters& counters = bucket->counters;
  return std::sscanf(line,
                     "%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64
                     ",%" SCNu64 ",%" SCNu64 ",%" SCNu64,
                     &bucket->start_us, &bucket->replies, &bucket->silence_us, &counters.lost,
                     &counters.duplicated, &counters.reordered, &counters.corrupt,
                     &counters.wrong_total, &counters.disconnects) == 9;
}

}  // namespace

std::vector<Bucket> TimelineReader::Read() {
  if (!file_) file_ = FileDescriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<Bucket> buckets;
  if (!file_) return buckets;
  char bytes[16'384];
  ssize_t count;
  while ((count = read(file_.get(), bytes, sizeof(bytes))) > 0) {
    rest_.append(bytes, static_cast<size_t>(count));
  }
  size_t start = 0, end;
  while ((end = rest_.find('\n', start)) != std::string::npos) {
    rest_[end] = '\0';
    Bucket bucket;
    if (Parse(rest_.c_str() + start, &bucket)) buckets.push_back(bucket);
    start = end + 1;
  }
  rest_.erase(0, start);
  return buckets;
}

absl::StatusOr<std::vector<Bucket>> ReadTimeline(const std::string& path) {
  std::vector<Bucket> buckets = TimelineReader(path).Read();
  if (buckets.empty()) return absl::NotFoundError(absl::StrCat("no timeline in ", path));
  return buckets;
}

std::vector<Bucket> Thin(const std::vector<Bucket>& buckets, size_t count, uint64_t* microseconds) {
  const size_t each = std::max<size_t>(1, (buckets.size() + count - 1) / count);
  *microseconds = each * Bucket::kMicroseconds;
  std::vector<Bucket> thin;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (i % each == 0) {
      thin.push_back(buckets[i]);
      continue;
    }
    Bucket& last = thin.back();
    last.replies += buckets[i].replies;
    last.silence_us = std::max(last.silence_us, buckets[i].silence_us);
    last.counters = buckets[i].counters;
  }
  // The last one may stand for fewer, and would show too few replies.
  if (thin.size() > 1 && buckets.size() % each != 0) thin.pop_back();
  return thin;
}

const EventLook& LookOf(EventKind kind) {
  // In the order of EventKind.
  static constexpr EventLook kLooks[] = {
      {"quiet", "nothing, for comparison", "#797979"},
      {"handoff", "planned handoff to a standby", "#2e9e4f"},
      {"upgrade_start", "next version starts beside it", "#797979"},
      {"upgrade", "upgrade to another version", "#1a9bb0"},
      {"bad_upgrade", "faulty upgrade, undone", "#d65fa8"},
      {"crash_hot", "process killed, standby ready", "#d9484a"},
      {"hang", "process hangs, standby ready", "#a3705f"},
      {"crash_cold", "process killed, no standby", "#9a6fd0"},
      {"driver_kill", "driver of the queues killed", "#b03a7b"},
      {"control_kill", "control process killed", "#d9822b"},
      {"keeper_kill", "keeper killed", "#3f9e8c"},
      {"baton_upgrade", "Baton upgraded", "#8a6d3b"},
      {"batond_kill", "batond killed", "#5a7fd6"},
      {"poison", "message that kills its readers", "#7a8f1f"},
      {"baseline", "process killed", "#d9484a"},
      {"standby_drain", "restart, clients told before", "#2e9e4f"},
      {"standby_crash", "process killed", "#d9484a"},
  };
  return kLooks[static_cast<size_t>(kind)];
}

SilenceStatistics Summarize(const std::vector<Event>& events, EventKind kind) {
  SilenceStatistics statistics;
  std::vector<double> silences;
  for (const Event& event : events) {
    if (event.kind != kind) continue;
    ++statistics.count;
    statistics.ok += event.problem.empty() ? 1 : 0;
    silences.push_back(event.silence_us);
  }
  statistics.p50_us = Quantile(silences, 0.5).value_or(0);
  statistics.p99_us = Quantile(silences, 0.99).value_or(0);
  statistics.max_us = Quantile(silences, 1).value_or(0);
  return statistics;
}

namespace {

class PlainProgress final : public Progress {
 public:
  void BeginAct(const std::string& title, bool, const std::string&) override {
    std::fprintf(stderr, "%s:\n", title.c_str());
    kind_.reset();
  }
  void EndAct(const Counters&) override {}
  void Begin(EventKind kind) override {
    if (kind_ != kind) std::fprintf(stderr, " %s:\n", EventTitle(kind));
    kind_ = kind;
  }
  void End(const Event& event) override {
    std::fprintf(stderr, "  %-13s %9.0f us  %s\n", EventKindName(event.kind), event.silence_us,
                 event.problem.empty() ? "ok" : event.problem.c_str());
  }
  void Note(const std::string& line) override { std::fprintf(stderr, "%s\n", line.c_str()); }
  void Yield() override {}

 private:
  std::optional<EventKind> kind_;
};

}  // namespace

std::unique_ptr<Progress> MakePlainProgress() { return std::make_unique<PlainProgress>(); }

}  // namespace baton::demo
