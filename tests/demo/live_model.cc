#include "tests/demo/live_model.h"

#include <algorithm>
#include <utility>

namespace baton::demo {
namespace {

constexpr uint32_t kBarBuckets = 20;  // 100 ms
constexpr uint64_t kBarMicroseconds = kBarBuckets * Bucket::kMicroseconds;
constexpr size_t kRateBars = 10;
constexpr size_t kMostBars = 200;  // a wider terminal shows no more

// The events of services without Baton, in this order.
constexpr std::pair<EventKind, const char*> kWithout[] = {
    {EventKind::kBaseline, "without: killed, clients reconnect"},
    {EventKind::kStandbyDrain, "without: restart, two connections"},
    {EventKind::kStandbyCrash, "without: killed, two connections"}};

template <typename T>
void KeepLast(size_t count, std::vector<T>* values) {
  if (values->size() > count) values->erase(values->begin(), values->end() - count);
}

}  // namespace

LiveModel::LiveModel(const DemoOptions& options, uint64_t now_us) : start_us_(now_us) {
  state_.connections = options.connections;
  const auto add = [this](EventKind kind, const std::string& title, uint32_t wanted) {
    if (wanted == 0) return;
    kinds_.push_back(kind);
    state_.rows.push_back({.title = title, .wanted = wanted});
  };
  for (const auto& [kind, wanted] : options.Wanted()) add(kind, EventTitle(kind), wanted);
  for (const auto& [kind, title] : kWithout) add(kind, title, options.baseline_runs);
  state_.current = state_.rows.size();
}

void LiveModel::BeginAct(const std::string& title, bool with_baton, uint64_t now_us) {
  state_.title = title;
  without_ = !with_baton;
  state_.without |= without_;
  act_us_ = now_us;
  event_us_ = 0;
  bar_ = {};
  bar_buckets_ = 0;
  disconnects_before_ = state_.disconnects_without;
  state_.rates.clear();
  state_.silences_us.clear();
}

void LiveModel::Begin(EventKind kind, uint64_t now_us) {
  event_us_ = now_us;
  state_.event_us = 0;
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  state_.current = static_cast<size_t>(found - kinds_.begin());
}

void LiveModel::End(const Event& event) {
  event_us_ = 0;
  state_.event_us = 0;
  events_.push_back(event);
  const auto found = std::find(kinds_.begin(), kinds_.end(), event.kind);
  if (found == kinds_.end()) return;
  const auto index = static_cast<size_t>(found - kinds_.begin());
  LiveRow& row = state_.rows[index];
  const BlackoutStatistics statistics = Summarize(events_, event.kind);
  row.done = static_cast<uint32_t>(statistics.count);
  row.failed = static_cast<uint32_t>(statistics.count - statistics.ok);
  row.median_us = statistics.p50_us;
  row.longest_us = statistics.max_us;
  if (without_ || event.blackout_us <= state_.longest_us) return;
  state_.longest_us = event.blackout_us;
  state_.longest_at = row.title;
}

void LiveModel::Add(const std::vector<Bucket>& buckets) {
  for (const Bucket& bucket : buckets) {
    if (bucket.start_us + Bucket::kMicroseconds >= act_us_) AddBucket(bucket);
  }
}

void LiveModel::AddBucket(const Bucket& bucket) {
  bar_.replies += bucket.replies;
  bar_.silence_us = std::max(bar_.silence_us, bucket.silence_us);
  if (++bar_buckets_ == kBarBuckets) {
    state_.rates.push_back(static_cast<double>(bar_.replies) * 1e6 / kBarMicroseconds);
    state_.silences_us.push_back(static_cast<double>(bar_.silence_us));
    KeepLast(kMostBars, &state_.rates);
    KeepLast(kMostBars, &state_.silences_us);
    bar_ = {};
    bar_buckets_ = 0;
  }
  if (event_us_ != 0 && bucket.start_us >= event_us_) {
    state_.event_us = std::max(state_.event_us, static_cast<double>(bucket.silence_us));
  }
  SetCounters(bucket.counters);
}

void LiveModel::SetCounters(const Counters& counters) {
  if (without_) {
    state_.disconnects_without = disconnects_before_ + counters.disconnects;
  } else {
    state_.counters = counters;
  }
}

void LiveModel::Finish() {
  state_.title = "The demonstration has ended";
  state_.ended = true;
  state_.current = state_.rows.size();
}

LiveState LiveModel::StateAt(uint64_t now_us) const {
  LiveState state = state_;
  state.seconds = static_cast<double>(now_us - start_us_) * 1e-6;
  const size_t bars = std::min(kRateBars, state.rates.size());
  for (size_t i = state.rates.size() - bars; i < state.rates.size(); ++i) {
    state.rate += state.rates[i] / static_cast<double>(bars);
  }
  state.bar_seconds = kBarMicroseconds * 1e-6;
  return state;
}

}  // namespace baton::demo
