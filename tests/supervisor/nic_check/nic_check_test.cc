// The check of a device, on a NIC in software that libmlx5 takes for one of mlx5.
#include "supervisor/nic_check/nic_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "supervisor/nic_check/checked_device.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/nic/harness.h"
#include "tests/lib/nic/oracle/uverbs_device.h"

namespace baton::nic_check {
namespace {

using ::testing::HasSubstr;

class NicCheckTest : public ::testing::Test {
 protected:
  NicCheckTest() {
    device_.AddMemory(shared_->fd(), shared_->begin(), shared_->bytes());
    context_ = device_.Open();
    options_.kills = 50;
  }
  ~NicCheckTest() override {
    EXPECT_EQ(ibv_close_device(context_), 0);
    if (scanner_ < 0) return;
    kill(scanner_, SIGKILL);
    waitpid(scanner_, nullptr, 0);
  }

  // In a process of its own, for the test has to be alone in its own when it forks.
  void ScanAtMost(uint64_t scans) {
    scanner_ = fork();
    if (scanner_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    device_.ScanAtMost(scans);
    for (;;) pause();
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
  ScanAtMost(UINT64_MAX);
  options_.patience = std::chrono::duration_cast<std::chrono::milliseconds>(
      harness::Patient(std::chrono::seconds(30)));
  const auto findings = CheckNic(context_, options_, shared_.get());
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_EQ(findings->size(), 11u);
  for (const Finding& finding : *findings) {
    std::printf("%s: %s\n", finding.name.c_str(), finding.text.c_str());
    EXPECT_TRUE(finding.holds) << finding.name << ": " << finding.text;
  }
}

// Nobody looks at the records of a NIC that does not see its doorbells.
TEST_F(NicCheckTest, shouldTryNothingOnADeviceThatDoesNothing) {
  options_.patience = std::chrono::milliseconds(20);
  const auto findings = CheckNic(context_, options_, shared_.get());
  EXPECT_THAT(std::string(findings.status().message()), HasSubstr("no completion within 20 ms"));
}

// The device stops while drivers are killed, or before. A timer that was armed may have it look at
// records once more, and after that again: with more kills this would go on for minutes.
TEST_F(NicCheckTest, shouldTellWhatDoesNotHold) {
  ScanAtMost(2000);
  options_.kills = 2000;
  options_.patience = std::chrono::milliseconds(100);
  const auto findings = CheckNic(context_, options_, shared_.get());
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_TRUE(std::any_of(findings->begin(), findings->end(), [](const Finding& finding) {
    return !finding.holds && finding.text.find("complet") != std::string::npos;
  }));
}

// Heirs that do not ask what is queued are found out, whatever else they believe.
TEST_F(NicCheckTest, shouldSeeWhatIsPostedTwiceOrNotAtAll) {
  ScanAtMost(UINT64_MAX);
  options_.patience = std::chrono::duration_cast<std::chrono::milliseconds>(
      harness::Patient(std::chrono::seconds(5)));
  options_.kills = 500;  // at most: the first harm ends it
  for (const Belief belief : {Belief::kNothing, Belief::kEverything}) {
    const auto device = CheckedDevice::Make(context_, options_, shared_.get());
    ASSERT_TRUE(device.ok()) << device.status();
    const auto seen = KilledMessengersAreFollowedExactly(device->get(), belief);
    EXPECT_FALSE(seen.ok()) << *seen;
    std::printf("%s\n", seen.status().ToString().c_str());
  }
}

TEST_F(NicCheckTest, shouldSayWhyNothingCouldBeTried) {
  options_.gid_index = 200;
  const auto findings = CheckNic(context_, options_, shared_.get());
  EXPECT_THAT(std::string(findings.status().message()), HasSubstr("port 1 has no gid 200"));
}

}  // namespace
}  // namespace baton::nic_check
