// The check of a device, on a NIC in software that libmlx5 takes for one of mlx5.
#include "supervisor/nic_check/nic_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "tests/lib/nic/harness.h"
#include "tests/lib/nic/oracle/uverbs_device.h"

namespace baton::nic_check {
namespace {

using ::testing::HasSubstr;

class NicCheckTest : public ::testing::Test {
 protected:
  NicCheckTest() {
    device_.AddMemory(shared_->fd(), shared_->begin(), shared_->bytes());
    scanner_ = fork();
    if (scanner_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      device_.ScanForEver();
    }
    context_ = device_.Open();
    options_.kills = 50;
  }
  ~NicCheckTest() override {
    EXPECT_EQ(ibv_close_device(context_), 0);
    kill(scanner_, SIGKILL);
    waitpid(scanner_, nullptr, 0);
  }

  nic::NicProcess nic_;
  const std::unique_ptr<nic::Client> client_ = nic_.Open();
  nic::SharedFile page_{4096};
  nic::oracle::UverbsDevice device_{client_.get(), &page_};
  const std::unique_ptr<SharedMemory> shared_ = SharedMemory::Make(kSharedBytes).value();
  pid_t scanner_ = -1;
  ibv_context* context_ = nullptr;
  Options options_;
};

TEST_F(NicCheckTest, shouldHoldOnADeviceThatDoesAsItIsTold) {
  const auto findings = CheckNic(context_, options_, shared_.get());
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_EQ(findings->size(), 10u);
  for (const Finding& finding : *findings) {
    std::printf("%s: %s\n", finding.name.c_str(), finding.text.c_str());
    EXPECT_TRUE(finding.holds) << finding.name << ": " << finding.text;
  }
}

// Nobody looks at the records of a NIC that does not see its doorbells.
TEST_F(NicCheckTest, shouldTellWhatDoesNotHold) {
  ASSERT_EQ(kill(scanner_, SIGSTOP), 0);
  options_.patience = std::chrono::milliseconds(20);
  options_.kills = 1;
  const auto findings = CheckNic(context_, options_, shared_.get());
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_FALSE((*findings)[1].holds);
  EXPECT_THAT((*findings)[1].text, HasSubstr("no completion within 20 ms"));
}

TEST_F(NicCheckTest, shouldSayWhyNothingCouldBeTried) {
  options_.port = 1;
  options_.gid_index = 200;
  const auto findings = CheckNic(context_, options_, shared_.get());
  EXPECT_THAT(std::string(findings.status().message()), HasSubstr("ibv_query_gid of index 200"));
}

}  // namespace
}  // namespace baton::nic_check
