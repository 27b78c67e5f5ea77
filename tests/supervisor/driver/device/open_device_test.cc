#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "supervisor/driver/device/open_device.h"
#include "tests/harness/network_namespace.h"

namespace baton::driver_process {
namespace {

using ::testing::ExitedWithCode;

std::string Network() { return std::filesystem::read_symlink("/proc/thread-self/ns/net"); }

bool MayAdminister() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  syscall(SYS_capget, &header, sets);
  const auto& set = sets[CAP_TO_INDEX(CAP_SYS_ADMIN)];
  return ((set.effective | set.permitted) & CAP_TO_MASK(CAP_SYS_ADMIN)) != 0;
}

v1::ServiceConfig In(const std::string& network) {
  v1::ServiceConfig service;
  service.set_network_namespace(network);
  return service;
}

// In a process of its own, which tells what is wrong on standard error, and with its status.
class ServiceNetworkDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = harness::NetworkNamespace::Create();
    if (absl::IsPermissionDenied(made.status())) {
      GTEST_SKIP() << "network namespaces cannot be made: " << made.status();
    }
    ASSERT_TRUE(made.ok()) << made.status();
    network_ = std::make_unique<harness::NetworkNamespace>(*std::move(made));
  }
  std::unique_ptr<harness::NetworkNamespace> network_;
};

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  _exit(1);
}

TEST_F(ServiceNetworkDeathTest, shouldEnterGiveUpTheRightToAndKnowTheWayBack) {
  EXPECT_EXIT(
      {
        const std::string home = Network();
        const auto left = EnterServiceNetwork(In(network_->path()));
        Require(left.ok(), "entered");
        Require(Network() == network_->Identity(), "in the namespace");
        struct stat file = {};
        Require(fstat(left->get(), &file) == 0, "a file of the namespace before");
        Require(home == "net:[" + std::to_string(file.st_ino) + "]", "which was ours");
        Require(geteuid() != 0 || !MayAdminister(), "without CAP_SYS_ADMIN");
        _exit(0);
      },
      ExitedWithCode(0), "");
}

TEST_F(ServiceNetworkDeathTest, shouldNeedNoRightWhereItIsAlready) {
  EXPECT_EXIT(
      {
        const bool before = MayAdminister();
        const auto left = EnterServiceNetwork(In("/proc/self/ns/net"));
        Require(left.ok() && !*left, "stayed");
        Require(EnterServiceNetwork(In("")).ok(), "stayed without a name");
        Require(MayAdminister() == before, "with the same rights");
        _exit(0);
      },
      ExitedWithCode(0), "");
}

// Entering it again from elsewhere: the right is gone.
TEST_F(ServiceNetworkDeathTest, shouldSayWhatEnteringTakes) {
  EXPECT_EXIT(
      {
        const auto left = EnterServiceNetwork(In(network_->path()));
        Require(left.ok(), "entered");
        const std::string home = "/proc/self/fd/" + std::to_string(left->get());
        const absl::Status refused = EnterServiceNetwork(In(home)).status();
        std::fprintf(stderr, "%s\n", std::string(refused.message()).c_str());
        Require(Network() == network_->Identity(), "where it was");
        _exit(absl::IsPermissionDenied(refused) ? 0 : 1);
      },
      ExitedWithCode(0),
      "network_namespace: /proc/self/fd/[0-9]+: setns, which takes CAP_SYS_ADMIN: Operation not "
      "permitted \\(errno 1\\); run batond as root, or give it CAP_SYS_ADMIN");
}

}  // namespace
}  // namespace baton::driver_process
