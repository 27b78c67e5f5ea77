// Processor time: ours, and what others on the machine take beside us.
#ifndef TESTS_DEMO_CPU_METER_H_
#define TESTS_DEMO_CPU_METER_H_

#include <cstdint>

namespace baton::demo {

// In seconds since some start. The kernel counts in ticks of 10 ms: measure over a second or more.
struct CpuTimes {
  double wall = 0;
  double ours = 0;     // of this process and its descendants, with those that have ended
  double machine = 0;  // of all processes, and of the kernel

  CpuTimes operator-(const CpuTimes& before) const {
    return {wall - before.wall, ours - before.ours, machine - before.machine};
  }
  double CoresUsed() const { return wall > 0 ? ours / wall : 0; }
  double CoresUsedByOthers() const {
    return wall > 0 && machine > ours ? (machine - ours) / wall : 0;
  }
};
CpuTimes ReadCpuTimes();

// Processors that we may run on.
uint32_t UsableCores();

}  // namespace baton::demo

#endif  // TESTS_DEMO_CPU_METER_H_
