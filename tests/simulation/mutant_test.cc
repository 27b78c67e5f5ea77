// Linked with one source of Baton's that has a defect: the simulation has to notice.
#include <gtest/gtest.h>

#include "tests/simulation/in_child.h"

namespace baton::simulation {
namespace {

constexpr uint64_t kSchedules = 5000;

TEST(MutantTest, MUTANT) {
  EXPECT_TRUE(IsCaught({}, kSchedules)) << "the defect was not noticed in " << kSchedules;
}

}  // namespace
}  // namespace baton::simulation

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
