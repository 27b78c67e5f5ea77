// Defects may end the process, which is a way to be caught too.
#ifndef TESTS_SIMULATION_IN_CHILD_H_
#define TESTS_SIMULATION_IN_CHILD_H_

#include <sys/wait.h>
#include <unistd.h>

#include <iostream>

#include "tests/simulation/runner.h"

namespace baton::simulation {

// Whether one of the schedules breaks a promise, or the process. Says which.
inline bool IsCaught(const Defects& defects, uint64_t schedules) {
  const pid_t child = fork();
  if (child == 0) {
    const RunSummary summary =
        RunSchedules({.first_seed = 1, .schedules = schedules, .defects = defects});
    if (!summary.broken.empty()) {
      std::cout << "seed " << summary.broken[0].seed << ": " << summary.broken[0].result.broken
                << std::endl;
    }
    _exit(summary.broken.empty() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return false;
  if (WIFSIGNALED(status)) std::cout << "signal " << WTERMSIG(status) << std::endl;
  return WIFSIGNALED(status) || WEXITSTATUS(status) == 1;
}

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_IN_CHILD_H_
