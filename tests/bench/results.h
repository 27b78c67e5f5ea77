// What a run of the benchmark has measured.
#ifndef TESTS_BENCH_RESULTS_H_
#define TESTS_BENCH_RESULTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::bench {

enum class SideName : uint8_t { kPolling, kEvents, kBrokered, kNative };
inline constexpr std::array<SideName, 4> kSides = {SideName::kPolling, SideName::kEvents,
                                                   SideName::kBrokered, SideName::kNative};
inline constexpr std::array<SideName, 2> kWorkerSides = {SideName::kBrokered, SideName::kNative};
constexpr std::string_view NameOf(SideName side) {
  switch (side) {
    case SideName::kPolling:
      return "polling";
    case SideName::kEvents:
      return "events";
    case SideName::kBrokered:
      return "brokered";
    case SideName::kNative:
      return "native";
  }
  return "";
}

// One after the other, with so many operations each.
struct Workload {
  std::string_view name;
  bool writes = false;  // by the server; otherwise messages there and back
  uint32_t size = 0;
  uint32_t window = 0;
  uint32_t count = 0;
};
inline constexpr std::array<Workload, 5> kWorkloads = {{
    {"echo_64B", false, 64, 1, 4000},
    {"write_64B", true, 64, 1, 4000},
    {"echo_64B_window_32", false, 64, 32, 16000},
    {"write_4KiB_window_16", true, 4096, 16, 8000},
    {"write_64KiB_window_16", true, 65536, 16, 1000},
}};

// Of one side and workload in one round.
struct Sample {
  double p50_us = 0;
  double p99_us = 0;
  double per_second = 0;  // operations
  // Of the server's processes, per operation.
  double running_us = 0;
  double waiting_us = 0;
  double sleeps = 0;
};

struct Round {
  double others_cores = 0;  // that others on the machine used meanwhile
  std::array<std::array<Sample, kSides.size()>, kWorkloads.size()> samples;

  const Sample& Of(size_t workload, SideName side) const {
    return samples[workload][static_cast<size_t>(side)];
  }
};

struct Results {
  std::string host;
  std::string kernel;
  uint32_t cores = 0;
  bool virtual_machine = false;
  std::vector<Round> rounds;
  // Other programs' figures, beside.
  std::vector<std::pair<std::string, double>> reference;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_RESULTS_H_
