// Processor time of this process and all its descendants that live.
#ifndef TESTS_DEMO_CPU_METER_H_
#define TESTS_DEMO_CPU_METER_H_

#include <cstdint>

namespace baton::demo {

// In seconds. The kernel counts in ticks of 10 ms for each process: measure over a second or more.
double ProcessTreeCpuSeconds();

// Processors that we may run on.
uint32_t UsableCores();

}  // namespace baton::demo

#endif  // TESTS_DEMO_CPU_METER_H_
