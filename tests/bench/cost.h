// What the servers take of the processors, and what others on the machine take.
#ifndef TESTS_BENCH_COST_H_
#define TESTS_BENCH_COST_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace baton::bench {

// Of some processes and their children, with all their threads, since they began.
struct Cost {
  double running_us = 0;
  double waiting_us = 0;  // for a processor
  double sleeps = 0;      // times that a thread gave its processor up

  Cost operator-(const Cost& before) const {
    return {running_us - before.running_us, waiting_us - before.waiting_us, sleeps - before.sleeps};
  }
};
Cost ReadCost(const std::vector<pid_t>& processes);

// Processor time in seconds since some start. In the virtual machine: the host's, of which all that
// the machine does not take is others'; it is told there once a second.
struct MachineTimes {
  double wall = 0;
  double others = 0;

  // None: one of the two was not told, or there is no time between them.
  std::optional<double> OthersSince(const MachineTimes& before) const {
    if (before.wall <= 0 || wall <= before.wall) return std::nullopt;
    return (others - before.others) / (wall - before.wall);
  }
};
MachineTimes ReadMachineTimes();

}  // namespace baton::bench

#endif  // TESTS_BENCH_COST_H_
