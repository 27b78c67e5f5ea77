// Linked with one source of Baton's that has a defect: the simulation has to notice.
#include <gtest/gtest.h>

#include "tests/simulation/in_child.h"

namespace baton::simulation {
namespace {

#ifdef DEEP_SCHEDULES
constexpr bool kDeep = true;
constexpr uint64_t kSchedules = 1000;
#else
constexpr bool kDeep = false;
constexpr uint64_t kSchedules = 20000;
#endif

TEST(MutantTest, MUTANT) {
  EXPECT_TRUE(IsCaught({}, kSchedules, kDeep)) << "the defect was not noticed in " << kSchedules;
}

}  // namespace
}  // namespace baton::simulation

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
