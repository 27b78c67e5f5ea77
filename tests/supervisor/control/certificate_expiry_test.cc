#include "supervisor/control/certificates.h"

#include <fcntl.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "tests/supervisor/control/test_certificates.h"

namespace baton {
namespace {

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
