#include "supervisor/driver/device/nic_process.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"

namespace baton::driver_process {
namespace {

using harness::WaitUntil;
using ::testing::HasSubstr;

class NicProcessTest : public ::testing::Test {
 protected:
  void Start() {
    NicPlan plan;
    plan.program = harness::Binaries().Find("baton-nic").value();
    ASSERT_OK_AND_ASSIGN(nic_, StartNic(plan));
  }
  char State() const {
    std::ifstream file(absl::StrCat("/proc/", nic_.process->pid(), "/stat"));
    std::string pid, name;
    char state = 0;
    file >> pid >> name >> state;
    return state;
  }
  // A device that is lost says so once.
  bool IsLost() {
    nic_.device->Progress();
    verbs::DeviceEvent event;
    return nic_.device->NextDeviceEvent(&event) &&
           event.type == verbs::DeviceEventType::kDeviceLost;
  }

  StartedNic nic_;
};

TEST_F(NicProcessTest, shouldAnswerAndLive) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (uint32_t i = 0; i < 3 * NicProcess::kSilentBeats; ++i) {
    EXPECT_FALSE(nic_.process->Beat());
    // It has time to answer.
    ASSERT_OK(nic_.device->CreateCompletionQueue(16));
  }
  EXPECT_NE(State(), 'Z');
  EXPECT_FALSE(IsLost());
}

TEST_F(NicProcessTest, shouldBeKilledAndLostWhenItDoesNotAnswer) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(kill(nic_.process->pid(), SIGSTOP), 0);
  ASSERT_OK(WaitUntil("the stop", [this] { return State() == 'T'; }));
  EXPECT_FALSE(nic_.process->Beat());  // which asks
  for (uint32_t i = 1; i < NicProcess::kSilentBeats; ++i) EXPECT_FALSE(nic_.process->Beat());
  EXPECT_NE(State(), 'Z');
  EXPECT_TRUE(nic_.process->Beat());
  EXPECT_OK(WaitUntil("its end", [this] { return State() == 'Z'; }));
  EXPECT_OK(WaitUntil("the loss", [this] { return IsLost(); }));
  // Nobody is told twice.
  for (uint32_t i = 0; i < 2 * NicProcess::kSilentBeats; ++i) {
    EXPECT_FALSE(nic_.process->Beat());
  }
}

TEST_F(NicProcessTest, shouldBeLostWhenItEnds) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_FALSE(IsLost());
  ASSERT_EQ(kill(nic_.process->pid(), SIGKILL), 0);
  EXPECT_OK(WaitUntil("the loss", [this] { return IsLost(); }));
}

// A session of its own could get no processor for seconds.
TEST_F(NicProcessTest, shouldStayInTheSessionAndLeaveTheGroup) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(getsid(nic_.process->pid()), getsid(0));
  EXPECT_EQ(getpgid(nic_.process->pid()), nic_.process->pid());
}

TEST_F(NicProcessTest, shouldNotStartWithFaultsThatNoConfigurationHas) {
  NicPlan plan;
  plan.program = harness::Binaries().Find("baton-nic").value();
  plan.faults.add_rules()->set_kind(v1::FaultRule::CUT);  // of no message
  EXPECT_FALSE(StartNic(plan).ok());
}

TEST_F(NicProcessTest, shouldSayThatThereIsNoProgram) {
  NicPlan plan;
  plan.program = "/nowhere/baton-nic";
  EXPECT_THAT(StartNic(plan).status().message(), HasSubstr("/nowhere/baton-nic"));
}

}  // namespace
}  // namespace baton::driver_process
