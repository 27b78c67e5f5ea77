#include "tests/demo/live_view.h"

#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "tests/demo/report.h"
#include "tests/demo/scenario.h"

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

enum class Style : uint8_t { kPlain, kBold, kFaint, kRed };

struct Line {
  std::string text;
  Style style = Style::kPlain;
};

// Returns the first `columns` characters. Each of ours takes one column.
std::string Cut(const std::string& text, size_t columns) {
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool first_byte = (static_cast<uint8_t>(text[i]) & 0xC0) != 0x80;
    if (first_byte && characters++ == columns) return text.substr(0, i);
  }
  return text;
}

std::string Styled(const std::string& text, Style style, const FrameLook& look) {
  static constexpr const char* kCodes[] = {"", "\x1b[1m", "\x1b[2m", "\x1b[31m"};
  std::string cut = Cut(text, look.columns);
  absl::StripTrailingAsciiWhitespace(&cut);
  if (!look.colour || style == Style::kPlain) return cut + "\n";
  return absl::StrCat(kCodes[static_cast<size_t>(style)], cut, "\x1b[0m\n");
}

// A bar for each of `heights` (0 to 1), the last `count` of them.
std::string Bars(const std::vector<double>& heights, size_t count, bool unicode) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
  const size_t from = heights.size() > count ? heights.size() - count : 0;
  std::string bars;
  for (size_t i = from; i < heights.size(); ++i) {
    const auto level = static_cast<size_t>(std::lround(std::clamp(heights[i], 0.0, 1.0) * 7));
    bars += unicode ? kBlocks[level] : kAscii[level];
  }
  return bars + std::string(count - (heights.size() - from), ' ');
}

constexpr size_t kLabel = 10;   // columns before the bars
constexpr size_t kLegend = 20;  // after them

size_t BarCount(const FrameLook& look) {
  return look.columns > kLabel + kLegend ? look.columns - kLabel - kLegend : 0;
}

std::string RateLine(const LiveState& state, const FrameLook& look) {
  const size_t count = BarCount(look);
  double most = 1;
  for (const double rate : state.rates) most = std::max(most, rate);
  std::vector<double> heights;
  for (const double rate : state.rates) heights.push_back(rate / most);
  return absl::StrFormat("%-*s%s %s/s", kLabel, "messages", Bars(heights, count, look.unicode),
                         Grouped(static_cast<uint64_t>(std::lround(state.rate))));
}

// From 0.1 ms to 1 s: each bar is a third of a decade or more.
double SilenceHeight(double us) { return us <= 100 ? 0 : std::log10(us / 100) / 4; }

std::string SilenceLine(const LiveState& state, const FrameLook& look) {
  const size_t count = BarCount(look);
  std::vector<double> heights;
  for (const double us : state.silences_us) heights.push_back(SilenceHeight(us));
  std::string line =
      absl::StrFormat("%-*s%s", kLabel, "silence", Bars(heights, count, look.unicode));
  if (!state.ended && !state.silences_us.empty()) {
    absl::StrAppend(&line, " ", Milliseconds(state.silences_us.back()), " now");
  }
  return line;
}

std::string ScaleLine(const LiveState& state, const FrameLook& look) {
  const size_t count = BarCount(look);
  return absl::StrFormat("%-*sthe last %.0f s; silence: 0.1 ms to 1 s", kLabel, "",
                         static_cast<double>(count) * state.bar_seconds);
}

std::vector<Line> Head(const LiveState& state, const FrameLook& look) {
  const auto seconds = static_cast<int>(state.seconds);
  const std::string right =
      absl::StrFormat("%d connections  %d:%02d", state.connections, seconds / 60, seconds % 60);
  const size_t room = look.columns > right.size() + 1 ? look.columns - right.size() - 1 : 0;
  return {{absl::StrFormat("%-*s %s", room, Cut(state.title, room), right), Style::kBold},
          {RateLine(state, look)},
          {SilenceLine(state, look)}};
}

std::vector<Line> Feet(const LiveState& state) {
  std::vector<Line> lines;
  std::string silence = "silence so far: ";
  if (state.event_us > 0)
    absl::StrAppend(&silence, "this event ", Milliseconds(state.event_us), ", ");
  absl::StrAppend(&silence, "longest ", Milliseconds(state.longest_us));
  if (!state.longest_at.empty()) absl::StrAppend(&silence, ", ", state.longest_at);
  lines.push_back({std::move(silence)});
  const Counters& counters = state.counters;
  const uint64_t defects = counters.lost + counters.duplicated + counters.reordered +
                           counters.corrupt + counters.wrong_total + counters.disconnects;
  lines.push_back(
      {absl::StrFormat("lost %d  duplicated %d  reordered %d  disconnects %d", counters.lost,
                       counters.duplicated, counters.reordered, counters.disconnects),
       defects == 0 ? Style::kBold : Style::kRed});
  if (counters.corrupt + counters.wrong_total != 0) {
    lines.push_back(
        {absl::StrFormat("corrupt %d  wrong totals %d", counters.corrupt, counters.wrong_total),
         Style::kRed});
  }
  if (state.without) {
    lines.push_back({absl::StrFormat("without Baton: disconnects %d", state.disconnects_without)});
  }
  return lines;
}

constexpr size_t kTitle = 35;
constexpr size_t kTableColumns = 70;

std::vector<Line> Table(const LiveState& state, const FrameLook& look) {
  std::vector<Line> lines = {
      {ScaleLine(state, look), Style::kFaint},
      {absl::StrFormat("  %-*s %9s %10s %10s", kTitle, "longest silence of a peer", "done",
                       "median ms", "longest ms"),
       Style::kFaint}};
  for (size_t i = 0; i < state.rows.size(); ++i) {
    const LiveRow& row = state.rows[i];
    std::string text = absl::StrFormat("%s %-*s %3d of %2d", i == state.current ? ">" : " ", kTitle,
                                       Cut(row.title, kTitle), row.done, row.wanted);
    if (row.done > 0) {
      absl::StrAppendFormat(&text, " %10.2f %10.2f", row.median_us / 1000, row.longest_us / 1000);
    }
    if (row.failed > 0) absl::StrAppend(&text, "  ", row.failed, " failed");
    Style style = row.done == 0 ? Style::kFaint : Style::kPlain;
    if (i == state.current) style = Style::kBold;
    if (row.failed > 0) style = Style::kRed;
    lines.push_back({std::move(text), style});
  }
  return lines;
}

std::vector<Line> Current(const LiveState& state) {
  uint32_t done = 0, wanted = 0, failed = 0;
  for (const LiveRow& row : state.rows) {
    done += row.done;
    wanted += row.wanted;
    failed += row.failed;
  }
  std::vector<Line> lines;
  if (state.current < state.rows.size()) {
    const LiveRow& row = state.rows[state.current];
    lines.push_back(
        {absl::StrFormat("> %s: %d of %d done", row.title, row.done, row.wanted), Style::kBold});
    lines.push_back({row.done == 0 ? "  no silence yet"
                                   : absl::StrCat("  silence: median ", Milliseconds(row.median_us),
                                                  ", longest ", Milliseconds(row.longest_us))});
  }
  lines.push_back({absl::StrFormat("  %d of %d events done, %d failed", done, wanted, failed),
                   failed == 0 ? Style::kPlain : Style::kRed});
  return lines;
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
  const SilenceStatistics statistics = Summarize(events_, event.kind);
  row.done = static_cast<uint32_t>(statistics.count);
  row.failed = static_cast<uint32_t>(statistics.count - statistics.ok);
  row.median_us = statistics.p50_us;
  row.longest_us = statistics.max_us;
  if (without_ || event.silence_us <= state_.longest_us) return;
  state_.longest_us = event.silence_us;
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

std::string RenderFrame(const LiveState& state, const FrameLook& look) {
  std::vector<Line> lines = Head(state, look);
  const std::vector<Line> feet = Feet(state), table = Table(state, look);
  const bool fits =
      look.columns >= kTableColumns && lines.size() + table.size() + feet.size() <= look.rows;
  const std::vector<Line> middle = fits ? table : Current(state);
  lines.insert(lines.end(), middle.begin(), middle.end());
  lines.insert(lines.end(), feet.begin(), feet.end());
  std::string frame;
  for (size_t i = 0; i < std::min(lines.size(), look.rows); ++i) {
    frame += Styled(lines[i].text, lines[i].style, look);
  }
  return frame;
}

namespace {

constexpr size_t kLeastColumns = 60;
constexpr size_t kLeastRows = 10;

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// locale(7): the first of these that is set decides.
bool IsUtf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(Environment(name));
    if (value.empty()) continue;
    return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return false;
}

winsize SizeOf(int fd) {
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  return size;
}

constexpr std::chrono::milliseconds kInterval{200};

uint64_t NowMicroseconds() { return MonotonicNanoseconds() / 1000; }

class LiveView final : public Progress {
 public:
  LiveView(const DemoOptions& options, Terminal terminal)
      : terminal_(terminal), model_(options, NowMicroseconds()), thread_([this] { Run(); }) {}

  ~LiveView() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void BeginAct(const std::string& title, bool with_baton, const std::string& path) override {
    const std::lock_guard<std::mutex> drawing(drawing_);
    const std::lock_guard<std::mutex> lock(mutex_);
    model_.BeginAct(title, with_baton, NowMicroseconds());
    timeline_ = TimelineReader(path);
    shown_ = true;
  }
  void EndAct(const Counters& counters) override {
    const std::lock_guard<std::mutex> drawing(drawing_);
    const std::vector<Bucket> last = timeline_.Read();
    timeline_ = TimelineReader("");
    const std::lock_guard<std::mutex> lock(mutex_);
    model_.Add(last);
    model_.SetCounters(counters);
  }
  void Begin(EventKind kind) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    model_.Begin(kind, NowMicroseconds());
  }
  void End(const Event& event) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    model_.End(event);
  }
  void Note(const std::string&) override {}  // the picture shows what matters of it
  void Yield() override {
    const std::lock_guard<std::mutex> drawing(drawing_);
    Draw();
    terminal_.Leave();
    shown_ = false;
  }

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "live view");
    while (!HasEndedAfter(kInterval)) {
      const std::lock_guard<std::mutex> drawing(drawing_);
      if (shown_) Draw();
    }
    const std::lock_guard<std::mutex> drawing(drawing_);
    Draw();
  }

  bool HasEndedAfter(std::chrono::milliseconds interval) {
    std::unique_lock<std::mutex> lock(mutex_);
    return wake_.wait_for(lock, interval, [this] { return ended_; });
  }

  // REQUIRES: drawing_ is held, and mutex_ is not: a terminal may be slow.
  void Draw() {
    const std::vector<Bucket> buckets = timeline_.Read();
    const LiveState state = [&] {
      const std::lock_guard<std::mutex> lock(mutex_);
      model_.Add(buckets);
      if (ended_) model_.Finish();
      return model_.StateAt(NowMicroseconds());
    }();
    const FrameLook look = terminal_.look();
    terminal_.Draw(RenderFrame(state, look), look);
  }

  std::mutex drawing_;  // taken before mutex_
  Terminal terminal_;
  TimelineReader timeline_{""};
  bool shown_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  LiveModel model_;
  bool ended_ = false;

  std::thread thread_;  // last: it uses the others
};

}  // namespace

std::optional<Terminal> Terminal::Open(int fd) {
  const std::string type = Environment("TERM");
  const winsize size = SizeOf(fd);
  if (isatty(fd) == 0 || type.empty() || type == "dumb" || size.ws_col < kLeastColumns ||
      size.ws_row < kLeastRows) {
    return std::nullopt;
  }
  return Terminal(fd, Environment("NO_COLOR").empty(), IsUtf8());
}

FrameLook Terminal::look() const {
  const winsize size = SizeOf(fd_);
  return {.columns = std::max<size_t>(size.ws_col, 2) - 1,
          .rows = std::max<size_t>(size.ws_row, 2) - 1,
          .colour = colour_,
          .unicode = unicode_};
}

void Terminal::Draw(const std::string& frame, const FrameLook& look) {
  // In a terminal of another width the lines of the former frame may be where they were not drawn.
  if (columns_ != look.columns || lines_ > look.rows) Leave();
  columns_ = look.columns;
  std::string bytes = lines_ > 0 ? absl::StrCat("\r\x1b[", lines_, "A") : "\r";
  lines_ = 0;
  for (size_t start = 0, end; (end = frame.find('\n', start)) != std::string::npos;
       start = end + 1, ++lines_) {
    absl::StrAppend(&bytes, frame.substr(start, end - start), "\x1b[K\r\n");
  }
  bytes += "\x1b[J";
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t count = write(fd_, bytes.data() + written, bytes.size() - written);
    if (count <= 0) return;  // the terminal is gone, or a signal came: the next frame is whole
    written += static_cast<size_t>(count);
  }
}

std::unique_ptr<Progress> MakeLiveView(const DemoOptions& options, Terminal terminal) {
  return std::make_unique<LiveView>(options, terminal);
}

}  // namespace baton::demo
