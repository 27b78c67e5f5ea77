#include "supervisor/config/network_namespace.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/harness/network_namespace.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

int Shell(const std::string& command) { return std::system(command.c_str()); }

TEST(NetworkNamespaceTest, shouldBeWhereIpNetnsHasIt) {
  EXPECT_EQ(NetworkNamespacePath("blue"), "/run/netns/blue");
  EXPECT_EQ(NetworkNamespacePath("/proc/1/ns/net"), "/proc/1/ns/net");
  EXPECT_EQ(NetworkNamespacePath(""), "");
}

// With the tool that operators use.
TEST(NetworkNamespaceTest, shouldBeFoundByNameAndMissedWithTheCure) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make network namespaces";
  const std::string name = absl::StrCat("baton-test-", getpid());
  const auto missing = OpenNetworkNamespace(name).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  const std::string cure = NetworkNamespaceCure(name, missing);
  EXPECT_EQ(cure, "ip netns add " + name);
  if (Shell(cure) != 0) GTEST_SKIP() << "ip netns add does not work here";

  {
    const auto file = OpenNetworkNamespace(name);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto own = OpenOwnNetworkNamespace();
    EXPECT_TRUE(own.ok()) << own.status();
    EXPECT_FALSE(file.ok() && own.ok() && IsSameNetworkNamespace(*file, *own));
  }

  // What is left of it when only its mount is gone, as in a container that was restarted.
  EXPECT_EQ(Shell("umount /run/netns/" + name), 0);
  const auto left = OpenNetworkNamespace(name).status();
  EXPECT_EQ(left.code(), absl::StatusCode::kFailedPrecondition) << left;
  EXPECT_EQ(Shell(NetworkNamespaceCure(name, left)), 0);
  EXPECT_TRUE(OpenNetworkNamespace(name).ok());
  EXPECT_EQ(Shell("ip netns delete " + name), 0);
}

TEST(NetworkNamespaceTest, shouldNameFieldPathErrorAndCure) {
  const absl::Status error = NetworkNamespaceError(
      "/proc/self/nothing", OpenNetworkNamespace("/proc/self/nothing").status());
  EXPECT_EQ(std::string(error.message()),
            "network_namespace: /proc/self/nothing: /proc/self/nothing: No such file or directory "
            "(errno 2); name one that is there: ip netns list, lsns -t net");
  EXPECT_THAT(std::string(OpenNetworkNamespace("/proc/self/ns/uts").status().message()),
              HasSubstr("/proc/self/ns/uts is no network namespace"));
}

TEST(NetworkNamespaceTest, shouldKnowItself) {
  const auto own = OpenOwnNetworkNamespace();
  ASSERT_TRUE(own.ok()) << own.status();
  const auto again = OpenNetworkNamespace("/proc/self/ns/net");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(IsSameNetworkNamespace(*own, *again));
  const auto other = harness::NetworkNamespace::Create();
  if (absl::IsPermissionDenied(other.status())) GTEST_SKIP() << other.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(IsSameNetworkNamespace(*own, *OpenNetworkNamespace(other->path())));
}

}  // namespace
}  // namespace baton
