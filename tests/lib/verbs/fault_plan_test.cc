#include "lib/verbs/soft/fault_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace baton::verbs::soft {
namespace {

std::vector<FaultKind> Decisions(const FaultPlan& plan, uint64_t connection, int count) {
  FaultSequence sequence(&plan, connection);
  std::vector<FaultKind> kinds;
  for (int i = 0; i < count; ++i) kinds.push_back(sequence.Next().kind);
  return kinds;
}

TEST(FaultPlan, shouldReadSeedAndRules) {
  const FaultPlan plan =
      FaultPlan::Parse("seed=7;delay:p=0.01,us=200;cut:n=1000;error:every=5,status=remote_access")
          .value();
  EXPECT_EQ(plan.seed, 7u);
  ASSERT_EQ(plan.rules.size(), 3u);
  EXPECT_EQ(plan.rules[0].kind, FaultKind::kDelay);
  EXPECT_DOUBLE_EQ(plan.rules[0].probability, 0.01);
  EXPECT_EQ(plan.rules[0].duration_us, 200u);
  EXPECT_EQ(plan.rules[1].kind, FaultKind::kCut);
  EXPECT_EQ(plan.rules[1].nth, 1000u);
  EXPECT_EQ(plan.rules[2].every, 5u);
  EXPECT_EQ(plan.rules[2].status, CompletionStatus::kRemoteAccessError);
}

TEST(FaultPlan, shouldReadBackWhatItWrites) {
  const std::string text = "seed=9;rnr:p=0.25,us=3;stall:n=4,us=5;error:every=6,status=general";
  EXPECT_EQ(FaultPlan::Parse(text).value().ToString(), text);
}

TEST(FaultPlan, shouldWriteAProbabilityExactly) {
  for (const char* const p : {"0.123456789", "0.9999999", "1e-09"}) {
    const FaultPlan plan = FaultPlan::Parse(std::string("cut:p=") + p).value();
    const FaultPlan again = FaultPlan::Parse(plan.ToString()).value();
    EXPECT_EQ(again.rules[0].probability, plan.rules[0].probability) << plan.ToString();
  }
}

TEST(FaultPlan, shouldTakeEmptyTextAsNoFaults) {
  EXPECT_TRUE(FaultPlan::Parse("").value().rules.empty());
}

TEST(FaultPlan, shouldNameTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"seed=x", "seed=x"},
      {"explode:n=1", "explode"},
      {"delay:p=2,us=1", "p=2"},
      {"delay:p=0.1", "us="},
      {"cut:n=0", "n=0"},
      {"cut:n=-3", "n=-3"},
      {"cut:color=red", "color"},
      {"cut:n=1,every=2", "exactly one"},
      {"cut", "exactly one"},
      {"cut:n=1,status=general", "status"},
      {"error:n=1,status=great", "great"},
      {"stall:n=1,us=99999999999999", "us="},
      {"delay:p=nan,us=1", "p=nan"},
  };
  for (const auto& [text, named] : cases) {
    const absl::Status status = FaultPlan::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(named), absl::string_view::npos) << status;
  }
}

TEST(FaultPlan, shouldDecideTheSameForTheSameSeedAndConnection) {
  const FaultPlan plan = FaultPlan::Parse("seed=3;rnr:p=0.3").value();
  EXPECT_EQ(Decisions(plan, 0, 1000), Decisions(plan, 0, 1000));
  EXPECT_NE(Decisions(plan, 0, 1000), Decisions(plan, 1, 1000));
  const FaultPlan other = FaultPlan::Parse("seed=4;rnr:p=0.3").value();
  EXPECT_NE(Decisions(plan, 0, 1000), Decisions(other, 0, 1000));
}

TEST(FaultPlan, shouldKeepToTheProbability) {
  const FaultPlan plan = FaultPlan::Parse("seed=3;cut:p=0.1").value();
  const std::vector<FaultKind> kinds = Decisions(plan, 5, 10'000);
  const auto cuts = std::count(kinds.begin(), kinds.end(), FaultKind::kCut);
  EXPECT_GT(cuts, 800);
  EXPECT_LT(cuts, 1200);
}

TEST(FaultPlan, shouldApplyNthOnceAndEveryPeriodically) {
  const FaultPlan plan = FaultPlan::Parse("cut:n=3;rnr:every=2").value();
  using enum FaultKind;
  EXPECT_EQ(Decisions(plan, 0, 6), (std::vector<FaultKind>{kNone, kRnr, kCut, kRnr, kNone, kRnr}));
}

}  // namespace
}  // namespace baton::verbs::soft
