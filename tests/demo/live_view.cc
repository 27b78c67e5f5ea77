#include "tests/demo/live_view.h"

#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "tests/demo/live_model.h"
#include "tests/demo/timeline.h"

namespace baton::demo {
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
