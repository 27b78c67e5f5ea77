// Keepers that die between any two steps of their taking over and of their work.

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

#include "spdlog/spdlog.h"
#include "tests/harness/temp_directory.h"
#include "tests/simulation/keeper/schedule.h"

namespace baton::simulation {
namespace {

constexpr uint64_t kSchedules = 2000;

uint64_t Number(const char* variable, uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 0);
}

volatile sig_atomic_t running = 0;  // the seed's last digits

// What ends the process is no promise that was seen to be broken, but has a seed, too.
void OnCrash(int number) {
  std::signal(number, SIG_DFL);
  std::cerr << "it ends with seed " << running << std::endl;
  std::raise(number);
}

class KeeperSimulationTest : public ::testing::Test {
 protected:
  KeeperSimulationTest() {
    spdlog::set_level(spdlog::level::off);
    for (const int number : {SIGABRT, SIGSEGV, SIGFPE}) std::signal(number, OnCrash);
  }

  KeeperScheduleEnd Run(uint64_t seed, bool trace = false) {
    running = static_cast<sig_atomic_t>(seed);
    return RunKeeperSchedule({seed, directory_.path(), trace});
  }

 private:
  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
};

// The seed that breaks a promise is printed; BATON_FIRST_SEED with BATON_SCHEDULES=1 runs it again,
// and prints its last steps.
TEST_F(KeeperSimulationTest, shouldKeepEveryPromiseWhereverKeepersDie) {
  const uint64_t first = Number("BATON_FIRST_SEED", 1);
  const uint64_t schedules = Number("BATON_SCHEDULES", kSchedules);
  uint64_t keepers = 0, upgrades = 0, broken = 0;
  for (uint64_t seed = first; seed < first + schedules && broken == 0; ++seed) {
    const KeeperScheduleEnd end = Run(seed, schedules == 1);
    keepers += end.keepers;
    upgrades += end.upgrades;
    if (end.broken.empty()) continue;
    ++broken;
    std::cout << end.trace;
    ADD_FAILURE() << "seed " << seed << ": " << end.broken;
  }
  std::cout << schedules << " schedules from seed " << first << ": " << keepers << " keepers, "
            << upgrades << " upgrades, " << broken << " broken promises\n";
}

// Each of these found a defect: a list of fenced workers was read after its end; a new worker's
// death was held before the upgrade's return, which divided by the number of new workers; the end
// of a drain left admission closed; a process of an upgrade that was not held, and a standby that
// had not attached, served on as anybody's.
TEST_F(KeeperSimulationTest, shouldKeepEveryPromiseInSchedulesThatOnceBrokeOne) {
  for (const uint64_t seed : {8, 297, 3606, 217, 5767}) {
    EXPECT_EQ(Run(seed).broken, "") << "seed " << seed;
  }
}

TEST_F(KeeperSimulationTest, shouldRepeatAScheduleExactly) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(Run(seed).hash, Run(seed).hash) << "seed " << seed;
  }
}

}  // namespace
}  // namespace baton::simulation
