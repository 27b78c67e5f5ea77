#include "supervisor/control/config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

std::string Problem(const std::string& text) {
  return std::string(ParseControlConfig(text).status().message());
}

TEST(ParseControlConfig, TakesAWholeOne) {
  const auto config = ParseControlConfig(R"(
      state_dir: "/run/baton" services: "kv" services: "nvme-1" operator_uids: 1000)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->services_size(), 2);
  EXPECT_EQ(config->operator_uids(0), 1000u);
}

TEST(ParseControlConfig, SaysWhereAndWhatIsWrong) {
  EXPECT_THAT(Problem("state_dir: \"/x\"\nshoes: 1"), HasSubstr("line 2"));
  EXPECT_THAT(Problem("services: \"kv\""), HasSubstr("state_dir is missing"));
  EXPECT_THAT(Problem("state_dir: \"/x\" services: \"../kv\""), HasSubstr("\"../kv\""));
  EXPECT_THAT(Problem("state_dir: \"/x\" services: \"a\" services: \"a\""), HasSubstr("twice"));
  EXPECT_THAT(Problem("state_dir: \"/" + std::string(100, 'x') + "\" services: \"kv\""),
              HasSubstr("shorter state_dir"));
  EXPECT_THAT(Problem(R"(state_dir: "/x\000/y" services: "kv")"), HasSubstr("NUL"));
}

}  // namespace
}  // namespace baton
