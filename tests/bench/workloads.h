// What the servers of the benchmark are asked for.
#ifndef TESTS_BENCH_WORKLOADS_H_
#define TESTS_BENCH_WORKLOADS_H_

#include <array>
#include <cstdint>

#include "tests/bench/protocol.h"

namespace baton::bench {

// The figure that a workload is there for.
enum class Figure : uint8_t {
  kLatency,    // of one at a time
  kRate,       // messages per second
  kBandwidth,  // bytes per second
};

// `count` operations one after the other, `window` of them under way.
struct Workload {
  const char* name;
  Op op;
  uint32_t size;
  uint32_t window;
  uint32_t count;
  Figure figure;
};
inline constexpr std::array<Workload, 13> kWorkloads = {{
    {"echo_64B", Op::kEcho, 64, 1, 4000, Figure::kLatency},
    {"write_64B", Op::kWrite, 64, 1, 4000, Figure::kLatency},
    {"read_64B", Op::kRead, 64, 1, 2000, Figure::kLatency},
    {"fetch_add", Op::kFetchAdd, kAtomicBytes, 1, 2000, Figure::kLatency},
    {"messages_batch_8", Op::kEcho, 64, 8, 12000, Figure::kRate},
    {"messages_batch_32", Op::kEcho, 64, 32, 16000, Figure::kRate},
    {"messages_batch_64", Op::kEcho, 64, 64, 16000, Figure::kRate},
    {"write_4KiB", Op::kWrite, 4096, 16, 8000, Figure::kBandwidth},
    {"write_64KiB", Op::kWrite, 65536, 16, 1000, Figure::kBandwidth},
    {"write_1MiB", Op::kWrite, 1048576, 16, 64, Figure::kBandwidth},
    {"read_4KiB", Op::kRead, 4096, 16, 4000, Figure::kBandwidth},
    {"read_64KiB", Op::kRead, 65536, 16, 500, Figure::kBandwidth},
    {"read_1MiB", Op::kRead, 1048576, 16, 32, Figure::kBandwidth},
}};

}  // namespace baton::bench

#endif  // TESTS_BENCH_WORKLOADS_H_
