#include "supervisor/driver/device/soft_faults.h"

#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace baton::driver_process {
namespace {

using ::testing::HasSubstr;
using verbs::soft::FaultKind;

v1::FaultPlan Plan(const std::string& text) {
  v1::FaultPlan plan;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &plan));
  return plan;
}

TEST(SoftFaultsTest, shouldSayInTheNicWhatTheConfigurationSays) {
  const v1::FaultPlan plan = Plan(
      "seed: 18446744073709551615 rules { kind: DELAY probability: 0.1 duration_us: 200 } "
      "rules { kind: STALL nth: 3 duration_us: 3600000000 } rules { kind: LOST nth: 9 } "
      "rules { kind: ERROR every: 50 error: RNR_RETRY_EXCEEDED }");
  const std::string text = FaultsToText(plan);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto faults = FaultsFromText(text);
  ASSERT_TRUE(faults.ok()) << faults.status();
  EXPECT_EQ(faults->seed, ~uint64_t{0});
  ASSERT_EQ(faults->rules.size(), 4u);
  EXPECT_EQ(faults->rules[0].kind, FaultKind::kDelay);
  EXPECT_EQ(faults->rules[0].probability, 0.1);
  EXPECT_EQ(faults->rules[0].duration_us, 200u);
  EXPECT_EQ(faults->rules[1].kind, FaultKind::kStall);
  EXPECT_EQ(faults->rules[1].nth, 3u);
  EXPECT_EQ(faults->rules[1].duration_us, 3'600'000'000u);
  EXPECT_EQ(faults->rules[2].kind, FaultKind::kLost);
  EXPECT_EQ(faults->rules[3].kind, FaultKind::kError);
  EXPECT_EQ(faults->rules[3].every, 50u);
  EXPECT_EQ(faults->rules[3].status, verbs::CompletionStatus::kRnrRetryExceeded);
}

TEST(SoftFaultsTest, shouldBeNoneWithoutAny) {
  const auto faults = FaultsFromText("");
  ASSERT_TRUE(faults.ok()) << faults.status();
  EXPECT_TRUE(faults->rules.empty());
}

// The number of an error is the index of a table.
TEST(SoftFaultsTest, shouldRefuseWhatNoConfigurationHas) {
  for (const char* text :
       {"rules {", "rules { kind: EXPLODE nth: 1 }", "rules { kind: ERROR nth: 1 error: 99 }",
        "rules { kind: 99 nth: 1 }", "rules { kind: CUT }"}) {
    EXPECT_EQ(FaultsFromText(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  std::string many;
  for (int i = 0; i < 65; ++i) many += "rules { kind: CUT nth: 1 } ";
  EXPECT_THAT(FaultsFromText(many).status().message(), HasSubstr("faults.rules: has 65"));
}

// The most rules that there may be, each as long as it may be, fit into one argument of a program.
TEST(SoftFaultsTest, shouldFitIntoAnArgument) {
  constexpr size_t kMostOfAnArgument = 32 * 4096;  // MAX_ARG_STRLEN of execve(2)
  std::string rules = "seed: 18446744073709551615 ";
  for (int i = 0; i < 64; ++i) {
    rules +=
        "rules { kind: ERROR nth: 18446744073709551615 duration_us: 3600000000 "
        "error: REMOTE_INVALID_REQUEST } ";
  }
  const std::string text = FaultsToText(Plan(rules));
  EXPECT_LT(text.size(), kMostOfAnArgument);
  EXPECT_TRUE(FaultsFromText(text).ok());
}

}  // namespace
}  // namespace baton::driver_process
