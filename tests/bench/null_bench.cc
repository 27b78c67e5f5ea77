// Baton's own part of the data path: a worker and an engine over a device that does nothing, beside
// what two threads need to pass a cache line there and back. `./run bench null` starts it.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/bench/null_baton.h"
#include "tests/bench/suite.h"
#include "tests/harness/processors.h"
#include "tests/harness/quantile.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {
namespace {

constexpr std::array<uint32_t, 4> kBatches = {1, 8, 32, 64};
constexpr std::array<uint32_t, 4> kConnections = {4, 16, 256, 4096};
constexpr uint32_t kActive = 4;
constexpr uint32_t kQueueDepth = 256, kQueueDepthOfMany = 64;
constexpr uint32_t kPingsOfALook = 20'000;
constexpr uint32_t kGrantedMebibytes = 1024, kPaceMicroseconds = 200;
constexpr double kSameDistance = 1.3;
constexpr int kTimesAgain = 4;
constexpr const char* kRateUnit = "work requests per second";

// ---- What two threads need to tell each other something, without any of Baton: the limit of every
// path that crosses from one processor to another.

constexpr uint32_t kLooksPerYield = 1 << 16;

struct alignas(64) CacheLine {
  std::atomic<uint32_t> value{0};
};

void SpinUntil(const CacheLine& line, uint32_t wanted) {
  for (uint32_t looks = 1; line.value.load(std::memory_order_acquire) != wanted; ++looks) {
    // Where there is one processor, the other needs it.
    if (looks % kLooksPerYield == 0) sched_yield();
  }
}

void SleepUntil(CacheLine& line, uint32_t wanted) {
  for (;;) {
    const uint32_t seen = line.value.load(std::memory_order_acquire);
    if (seen == wanted) return;
    syscall(SYS_futex, &line.value, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }
}

void Wake(CacheLine& line) {
  syscall(SYS_futex, &line.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Tell(CacheLine& line, uint32_t value) {
  line.value.store(value, std::memory_order_release);
  Wake(line);
}

uint32_t Since(uint64_t began) {
  return static_cast<uint32_t>(std::min<uint64_t>(MonotonicNanoseconds() - began, UINT32_MAX));
}

// There and back, `count` times, over two cache lines: the calling thread, and one on `processor`
// that echoes. Both spin. In nanoseconds.
std::vector<uint32_t> CacheLinePingPong(uint32_t count, int processor) {
  CacheLine there, back;
  std::thread echo([&] {
    harness::RunOnProcessor(processor);
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

// One message of a client, handed on by an engine to a worker, and its answer back the same way:
// three threads that do nothing else, and sleep whenever a look is in vain (FUTEX_WAIT).
std::vector<uint32_t> FutexChain(uint32_t count) {
  // The engine waits for either neighbour in turns, as a message goes there and back.
  CacheLine to_engine, to_worker, from_worker, to_client;
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

void SetQuantiles(Round& round, const std::string& name, std::vector<uint32_t> took_ns) {
  round.Set(absl::StrCat(name, "_p50"), Quantile(took_ns, 0.5), "ns");
  round.Set(absl::StrCat(name, "_p99"), Quantile(took_ns, 0.99), "ns");
  round.Set(absl::StrCat(name, "_p99.9"), Quantile(took_ns, 0.999), "ns");
}

class NullBench {
 public:
  // `only`: names of parts; empty: all.
  NullBench(std::vector<std::string> only, Suite* suite) : only_(std::move(only)), suite_(*suite) {
    Compare("round_trips",
            {"round_trip_to_cache_lines", "round_trip_p50", "cache_lines_p50", Better::kLess, 1.3});
    Compare("batches",
            {"batch_32_to_batch_1", "alone_32_per_second", "alone_1_per_second", Better::kMore, 5});
    Compare("batches", {"stream_32_to_stream_1", "stream_32_per_second", "stream_1_per_second",
                        Better::kMore});
    Compare("batches", {"batch_32_per_second", "stream_32_per_second", "", Better::kMore, 20e6});
    Compare("connections", {"connections_4096_to_4", "connections_4096_per_second",
                            "connections_4_per_second", Better::kMore, 0.9});
    Compare("grants",
            {"granting_p99_to_quiet", "granting_p99", "not_granting_p99", Better::kLess, 1.2});
    Compare("three_parties", {"three_parties_to_futex", "three_parties_p50",
                              "three_parties_futex_p50", Better::kLess, 0.25});
    DrawAll();
  }

  absl::Status Measure(Round& round) {
    for (const Part& part : kParts) {
      if (!IsWanted(part.name)) continue;
      BATON_RETURN_IF_ERROR(MeasureAtOneDistance(part, round));
    }
    harness::RunOnProcessor(-1);
    return absl::OkStatus();
  }

  static std::vector<std::string> PartNames() {
    std::vector<std::string> names;
    for (const Part& part : kParts) names.emplace_back(part.name);
    return names;
  }

 private:
  struct Part {
    const char* name;
    absl::Status (NullBench::*measure)(Round&);
  };
  static const std::array<Part, 5> kParts;

  bool IsWanted(std::string_view part) const {
    return only_.empty() || std::find(only_.begin(), only_.end(), part) != only_.end();
  }
  void Compare(std::string_view part, Ratio ratio) {
    if (IsWanted(part)) suite_.Compare(std::move(ratio));
  }

  // Between the two processors. The host of a virtual machine moves them now and then, and a cache
  // line takes four times as long then, or a quarter. A part in which that happened is measured
  // again, a few times.
  absl::Status MeasureAtOneDistance(const Part& part, Round& round) {
    double before = Distance();
    for (int again = 0;; ++again) {
      BATON_RETURN_IF_ERROR((this->*part.measure)(round));
      const double after = Distance();
      const auto [least, most] = std::minmax(before, after);
      if (most <= least * kSameDistance || again == kTimesAgain) return absl::OkStatus();
      before = after;
    }
  }

  // Leaves the calling thread on its processor.
  double Distance() {
    harness::RunOnProcessor(processors_.ours);
    std::vector<uint32_t> took_ns = CacheLinePingPong(kPingsOfALook, processors_.others);
    return Quantile(took_ns, 0.5).value_or(0);
  }

  void DrawAll() {
    Line alone{"one transaction under way", {}}, stream{"as many as there is room for", {}};
    for (const uint32_t batch : kBatches) {
      alone.points.emplace_back(batch, absl::StrCat("alone_", batch, "_per_second"));
      stream.points.emplace_back(batch, absl::StrCat("stream_", batch, "_per_second"));
    }
    suite_.Draw({"batches",
                 "Work requests over the null device",
                 "in a transaction",
                 kRateUnit,
                 {alone, stream}});
    Line connections{"4 active, batch 32", {}};
    for (const uint32_t count : kConnections) {
      connections.points.emplace_back(count, absl::StrCat("connections_", count, "_per_second"));
    }
    suite_.Draw({"connections",
                 "Work requests over the null device",
                 "connections",
                 kRateUnit,
                 {connections}});
  }

  absl::Status MeasureRoundTrips(Round& round) {
    SetQuantiles(round, "cache_lines",
                 CacheLinePingPong(suite_.Scaled(400'000), processors_.others));
    NullBatonOptions options;
    options.engine_processor = processors_.others;
    BATON_ASSIGN_OR_RETURN(const auto baton, NullBaton::Start(options));
    std::vector<uint32_t> took_ns;
    BATON_RETURN_IF_ERROR(baton->RoundTrips(suite_.Scaled(20'000), &took_ns));
    took_ns.clear();
    BATON_RETURN_IF_ERROR(baton->RoundTrips(suite_.Scaled(200'000), &took_ns));
    SetQuantiles(round, "round_trip", std::move(took_ns));
    return absl::OkStatus();
  }

  absl::Status MeasureBatches(Round& round) {
    NullBatonOptions options;
    options.connections = kActive;
    options.queue_depth = kQueueDepth;
    options.engine_processor = processors_.others;
    BATON_ASSIGN_OR_RETURN(const auto baton, NullBaton::Start(options));
    for (const uint32_t batch : kBatches) {
      BATON_RETURN_IF_ERROR(SetRate(round, "alone", *baton, batch, batch));
      BATON_RETURN_IF_ERROR(SetRate(round, "stream", *baton, batch, kQueueDepth));
    }
    return absl::OkStatus();
  }

  absl::Status MeasureConnections(Round& round) {
    for (const uint32_t connections : kConnections) {
      NullBatonOptions options;
      options.connections = connections;
      options.queue_depth = kQueueDepthOfMany;
      options.engine_processor = processors_.others;
      BATON_ASSIGN_OR_RETURN(const auto baton, NullBaton::Start(options));
      BATON_ASSIGN_OR_RETURN(const double rate, RateOf(*baton, 32, kQueueDepthOfMany));
      round.Set(absl::StrCat("connections_", connections, "_per_second"), rate, kRateUnit);
    }
    return absl::OkStatus();
  }

  absl::Status SetRate(Round& round, const char* name, NullBaton& baton, uint32_t batch,
                       uint32_t window) {
    BATON_ASSIGN_OR_RETURN(const double rate, RateOf(baton, batch, window));
    round.Set(absl::StrCat(name, "_", batch, "_per_second"), rate, kRateUnit);
    return absl::OkStatus();
  }

  absl::StatusOr<double> RateOf(NullBaton& baton, uint32_t batch, uint32_t window) {
    const uint32_t count = suite_.Scaled(batch == 1 ? 500'000 : 2'000'000, batch);
    const uint32_t before = std::max(count / 10, batch);
    BATON_RETURN_IF_ERROR(baton.Stream(before, batch, kActive, window).status());
    BATON_ASSIGN_OR_RETURN(const double seconds, baton.Stream(count, batch, kActive, window));
    return (count - count % batch) / seconds;  // whole batches
  }

  // Worker, engine and peer, wherever the scheduler puts them, and waiting as they do in use.
  absl::Status MeasureThreeParties(Round& round) {
    harness::RunOnProcessor(-1);
    SetQuantiles(round, "three_parties_futex", FutexChain(suite_.Scaled(10'000)));
    NullBatonOptions options;
    options.has_peer = true;
    options.yield_microseconds = driver_process::EngineOptions().yield_microseconds;
    BATON_ASSIGN_OR_RETURN(const auto baton, NullBaton::Start(options));
    std::vector<uint32_t> took_ns;
    BATON_RETURN_IF_ERROR(baton->RoundTrips(suite_.Scaled(20'000), &took_ns));
    SetQuantiles(round, "three_parties", std::move(took_ns));
    return absl::OkStatus();
  }

  // A worker that asks now and then, while all of the buffers are granted and revoked in a loop,
  // and while they are not. Wherever the scheduler puts them.
  absl::Status MeasureGrants(Round& round) {
    harness::RunOnProcessor(-1);
    for (const bool grants : {false, true}) {
      NullBatonOptions options;
      options.yield_microseconds = driver_process::EngineOptions().yield_microseconds;
      options.buffer_bytes = uint64_t{suite_.Scaled(kGrantedMebibytes)} << 20;
      options.grants = grants;
      BATON_ASSIGN_OR_RETURN(const auto baton, NullBaton::Start(options));
      std::vector<uint32_t> took_ns;
      BATON_RETURN_IF_ERROR(
          baton->PacedRoundTrips(suite_.Scaled(20'000), kPaceMicroseconds, &took_ns));
      SetQuantiles(round, grants ? "granting" : "not_granting", std::move(took_ns));
    }
    return absl::OkStatus();
  }

  const std::vector<std::string> only_;
  Suite& suite_;
  const harness::ProcessorPair processors_ = harness::FindProcessorPair();
};

const std::array<NullBench::Part, 5> NullBench::kParts = {{
    {"round_trips", &NullBench::MeasureRoundTrips},
    {"batches", &NullBench::MeasureBatches},
    {"connections", &NullBench::MeasureConnections},
    {"three_parties", &NullBench::MeasureThreeParties},
    {"grants", &NullBench::MeasureGrants},
}};

int Main(int argc, char** argv) {
  SuiteOptions options;
  std::vector<std::string> only;
  examples::Flags flags("Baton's own part of the data path, over a device that does nothing.");
  AddSuiteOptions(flags, &options);
  flags.Add("--only", &only, "parts, of all").OneOf(NullBench::PartNames());
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  Suite suite("null", options);
  NullBench bench(only, &suite);
  return suite.RunToExit([&](Round& round) { return bench.Measure(round); });
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
