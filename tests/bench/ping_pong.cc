#include "tests/bench/ping_pong.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <thread>

#include "lib/base/clock.h"

namespace baton::bench {
namespace {

constexpr uint32_t kLooksPerYield = 1 << 16;

struct alignas(64) Line {
  std::atomic<uint32_t> value{0};
};

void SpinUntil(const Line& line, uint32_t wanted) {
  for (uint32_t looks = 1; line.value.load(std::memory_order_acquire) != wanted; ++looks) {
    // Where there is one processor, the other needs it.
    if (looks % kLooksPerYield == 0) sched_yield();
  }
}

void SleepUntil(Line& line, uint32_t wanted) {
  for (;;) {
    const uint32_t seen = line.value.load(std::memory_order_acquire);
    if (seen == wanted) return;
    syscall(SYS_futex, &line.value, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }
}

void Wake(Line& line) { syscall(SYS_futex, &line.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void Tell(Line& line, uint32_t value) {
  line.value.store(value, std::memory_order_release);
  Wake(line);
}

uint32_t Since(uint64_t began) {
  return static_cast<uint32_t>(std::min<uint64_t>(MonotonicNanoseconds() - began, UINT32_MAX));
}

}  // namespace

TwoProcessors FindTwoProcessors() {
  TwoProcessors found;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) < 2) return found;
  for (int i = 0; i < CPU_SETSIZE && found.others < 0; ++i) {
    if (CPU_ISSET(i, &set)) (found.ours < 0 ? found.ours : found.others) = i;
  }
  return found;
}

void RunOnProcessor(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int processors = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  for (int i = 0; i < processors; ++i) {
    if (processor < 0 || i == processor) CPU_SET(i, &set);
  }
  // Where it may not run there it runs where it may.
  (void)sched_setaffinity(0, sizeof(set), &set);
}

std::vector<uint32_t> CacheLinePingPong(uint32_t count, int processor) {
  Line there, back;
  std::thread echo([&] {
    RunOnProcessor(processor);
    for (uint32_t i = 1; i <= count; ++i) {
      SpinUntil(there, i);
      back.value.store(i, std::memory_order_release);
    }
  });
  std::vector<uint32_t> took;
  took.reserve(count);
  for (uint32_t i = 1; i <= count; ++i) {
    const uint64_t began = MonotonicNanoseconds();
    there.value.store(i, std::memory_order_release);
    SpinUntil(back, i);
    took.push_back(Since(began));
  }
  echo.join();
  return took;
}

std::vector<uint32_t> FutexChain(uint32_t count) {
  // The engine waits for either neighbour in turns, as a message goes there and back.
  Line to_engine, to_worker, from_worker, to_client;
  std::thread engine([&] {
    for (uint32_t i = 1; i <= count; ++i) {
      SleepUntil(to_engine, i);
      Tell(to_worker, i);
      SleepUntil(from_worker, i);
      Tell(to_client, i);
    }
  });
  std::thread worker([&] {
    for (uint32_t i = 1; i <= count; ++i) {
      SleepUntil(to_worker, i);
      Tell(from_worker, i);
    }
  });
  std::vector<uint32_t> took;
  took.reserve(count);
  for (uint32_t i = 1; i <= count; ++i) {
    const uint64_t began = MonotonicNanoseconds();
    Tell(to_engine, i);
    SleepUntil(to_client, i);
    took.push_back(Since(began));
  }
  engine.join();
  worker.join();
  return took;
}

}  // namespace baton::bench
