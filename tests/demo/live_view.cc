#include "tests/demo/live_view.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "tests/demo/live_frame.h"
#include "tests/demo/live_model.h"
#include "tests/demo/timeline.h"

namespace baton::demo {
namespace {

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

std::unique_ptr<Progress> MakeLiveView(const DemoOptions& options, Terminal terminal) {
  return std::make_unique<LiveView>(options, terminal);
}

}  // namespace baton::demo
