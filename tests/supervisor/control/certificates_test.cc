#include <fcntl.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/control/certificates.h"
#include "supervisor/control/config.h"
#include "tests/supervisor/control/test_certificates.h"

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

constexpr int64_t kDay = 86'400;

std::optional<int64_t> ExpiryIn(const std::string& path) {
  return CertificateExpiry(FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)));
}

// Made for two days.
TEST(CertificateExpiryTest, ShouldTellWhenACertificateEnds) {
  const TestCertificates certificates;
  const int64_t before = std::time(nullptr);
  certificates.MakeAuthority("ca");
  const int64_t after = std::time(nullptr);
  const std::optional<int64_t> end = ExpiryIn(certificates.Certificate("ca"));
  ASSERT_TRUE(end.has_value());
  EXPECT_GE(*end, before + 2 * kDay);
  EXPECT_LE(*end, after + 2 * kDay);
}

TEST(CertificateExpiryTest, ShouldTellOfTheFirstThatEnds) {
  const TestCertificates certificates;
  certificates.MakeAuthority("a");
  certificates.MakeAuthority("b");
  const std::optional<int64_t> a = ExpiryIn(certificates.Certificate("a"));
  const std::optional<int64_t> b = ExpiryIn(certificates.Certificate("b"));
  ASSERT_TRUE(a.has_value() && b.has_value());
  const std::string both = certificates.Certificate("both");
  std::ofstream(both) << std::ifstream(certificates.Certificate("b")).rdbuf()
                      << std::ifstream(certificates.Certificate("a")).rdbuf();
  EXPECT_EQ(ExpiryIn(both), std::min(*a, *b));
}

TEST(CertificateExpiryTest, ShouldTellNothingOfAFileWithoutCertificates) {
  const TestCertificates certificates;
  certificates.MakeAuthority("ca");
  EXPECT_EQ(ExpiryIn(certificates.Key("ca")), std::nullopt);
  EXPECT_EQ(ExpiryIn(certificates.Key("none")), std::nullopt);
  EXPECT_EQ(ExpiryIn(""), std::nullopt);
}

}  // namespace
}  // namespace baton
