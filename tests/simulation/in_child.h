// Schedules in a process of their own, which defects may end.
#ifndef TESTS_SIMULATION_IN_CHILD_H_
#define TESTS_SIMULATION_IN_CHILD_H_

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <iostream>
#include <new>

#include "tests/simulation/arenas.h"
#include "tests/simulation/runner.h"

namespace baton::simulation {

// Whether one of the schedules breaks a promise. Says which. A process that ends instead, by a
// signal or for want of memory, proves nothing: that is said, too.
inline bool IsCaught(const Defects& defects, uint64_t schedules, bool deep = false,
                     ScheduleResult (*run)(const ScheduleOptions&) = RunSchedule) {
  constexpr int kCaught = 3;
  void* const shared = mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return false;
  auto* const seed = new (shared) std::atomic<uint64_t>(1);  // of the schedule under way
  const pid_t child = fork();
  if (child == 0) {
    ForgetArenas();

    for (; *seed <= schedules; ++*seed) {
      const ScheduleResult result = run({*seed, deep, defects});
      if (result.broken.empty()) continue;
      std::cout << "caught: schedule " << *seed << ": " << result.broken << std::endl;
      _exit(kCaught);
    }
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return false;
  if (WIFSIGNALED(status)) {
    std::cout << "not caught: schedule " << *seed << ": the process ended with "
              << strsignal(WTERMSIG(status)) << std::endl;
  }
  munmap(shared, sizeof(std::atomic<uint64_t>));
  return WIFEXITED(status) && WEXITSTATUS(status) == kCaught;
}

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_IN_CHILD_H_
