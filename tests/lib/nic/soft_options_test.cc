#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "lib/nic/soft_options.h"

namespace baton::verbs::soft {
namespace {

std::vector<FaultKind> Decisions(const FaultPlan& plan, uint64_t connection, int count) {
  FaultSequence sequence(&plan, connection);
  std::vector<FaultKind> kinds;
  for (int i = 0; i < count; ++i) kinds.push_back(sequence.Next().kind);
  return kinds;
}

TEST(FaultPlan, shouldDecideTheSameForTheSameSeedAndConnection) {
  const FaultPlan plan{.seed = 3, .rules = {{.kind = FaultKind::kRnr, .probability = 0.3}}};
  EXPECT_EQ(Decisions(plan, 0, 1000), Decisions(plan, 0, 1000));
  EXPECT_NE(Decisions(plan, 0, 1000), Decisions(plan, 1, 1000));
  const FaultPlan other{.seed = 4, .rules = {{.kind = FaultKind::kRnr, .probability = 0.3}}};
  EXPECT_NE(Decisions(plan, 0, 1000), Decisions(other, 0, 1000));
}

TEST(FaultPlan, shouldKeepToTheProbability) {
  const FaultPlan plan{.seed = 3, .rules = {{.kind = FaultKind::kCut, .probability = 0.1}}};
  const std::vector<FaultKind> kinds = Decisions(plan, 5, 10'000);
  const auto cuts = std::count(kinds.begin(), kinds.end(), FaultKind::kCut);
  EXPECT_GT(cuts, 800);
  EXPECT_LT(cuts, 1200);
}

TEST(FaultPlan, shouldApplyNthOnceAndEveryPeriodically) {
  const FaultPlan plan{
      .rules = {{.kind = FaultKind::kCut, .nth = 3}, {.kind = FaultKind::kRnr, .every = 2}}};
  using enum FaultKind;
  EXPECT_EQ(Decisions(plan, 0, 6), (std::vector<FaultKind>{kNone, kRnr, kCut, kRnr, kNone, kRnr}));
}

}  // namespace
}  // namespace baton::verbs::soft
