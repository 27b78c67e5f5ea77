#include "tests/harness/stopped_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "lib/base/clock.h"

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

std::atomic<uint64_t> g_stopped_at{0};    // CLOCK_MONOTONIC, nanoseconds; 0: it runs
std::atomic<int64_t> g_ahead_seconds{0};  // CLOCK_REALTIME

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const uint64_t stopped_at = g_stopped_at.load();
  if (clock != CLOCK_MONOTONIC || stopped_at == 0) {
    const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
    if (clock == CLOCK_REALTIME) now->tv_sec += g_ahead_seconds.load();
    return result;
  }
  now->tv_sec = static_cast<time_t>(stopped_at / kSecond);
  now->tv_nsec = static_cast<long>(stopped_at % kSecond);
  return 0;
}

namespace baton::harness {

StoppedClock::StoppedClock() { g_stopped_at = MonotonicNanoseconds(); }
StoppedClock::~StoppedClock() { g_stopped_at = 0; }
SetClock::SetClock(int64_t seconds) { g_ahead_seconds = seconds; }
SetClock::~SetClock() { g_ahead_seconds = 0; }
void StoppedClock::Pass(uint64_t nanoseconds) { g_stopped_at += nanoseconds; }

}  // namespace baton::harness
