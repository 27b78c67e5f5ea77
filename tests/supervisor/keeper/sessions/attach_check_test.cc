#include <string>

#include "gtest/gtest.h"
#include "supervisor/keeper/sessions/attach_check.h"

namespace baton::keeper {
namespace {

TEST(WorkerTokensTest, shouldBeGoodOnce) {
  WorkerTokens tokens;
  const std::string one = tokens.New(1), two = tokens.New(2);
  EXPECT_NE(one, two);
  EXPECT_EQ(tokens.Redeem(one).value_or(0), 1u);
  EXPECT_EQ(tokens.Redeem(one).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(tokens.Redeem(two).value_or(0), 2u);
}

TEST(WorkerTokensTest, shouldEndWithTheirWorker) {
  WorkerTokens tokens;
  const std::string one = tokens.New(1), two = tokens.New(2);
  tokens.Forget(1);
  EXPECT_FALSE(tokens.Redeem(one).ok());
  EXPECT_TRUE(tokens.Redeem(two).ok());
}

TEST(WorkerTokensTest, shouldBeForgottenWhenAWorkerAsksForTooMany) {
  WorkerTokens tokens;
  const std::string others = tokens.New(2), first = tokens.New(1);
  std::string last;
  for (int i = 0; i < 100; ++i) last = tokens.New(1);
  EXPECT_FALSE(tokens.Redeem(first).ok());
  EXPECT_TRUE(tokens.Redeem(last).ok());
  EXPECT_TRUE(tokens.Redeem(others).ok());
}

}  // namespace
}  // namespace baton::keeper
