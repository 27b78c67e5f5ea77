// libbaton-testing does what it says, with services of this tree. new_service_test.sh
// of tests/worker/kit shows that it can be used without the tree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <baton/testing.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"

namespace baton::testing_kit {
namespace {

using test_kit::Failure;
using test_kit::Peer;
using test_kit::Service;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kTimeout(30);

std::string PathOf(const std::string& program) { return harness::Binaries().Find(program).value(); }

std::vector<std::string> Counter(const std::string& program, std::vector<std::string> more = {}) {
  std::vector<std::string> command = {PathOf("worker/examples/guide/" + program), "{socket}",
                                      "127.0.0.1:{port}"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}
test_kit::Options Brokered() { return {Counter("counter"), "counter"}; }
test_kit::Options Native() { return {Counter("counter.so"), "counter", "", /*native=*/true}; }

// The `count`th "1" of the connection is answered so: by counter with more behind it, by formats
// without.
void ExpectCount(Peer& peer, int count) {
  const std::string answer = peer.Ask("1");
  EXPECT_EQ(answer.substr(0, answer.find(',')), std::to_string(count));
}

std::string FailureOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "none";
}

TEST(ServiceRunTest, shouldUpgradeToAnotherProgramAndGoOn) {
  Service service(Brokered());
  Peer peer(service);
  ExpectCount(peer, 1);
  service.Upgrade(Counter("formats", {"1"}));
  ExpectCount(peer, 2);
  service.KillOwner();
  ExpectCount(peer, 3);
  service.HandOff();
  ExpectCount(peer, 4);
  service.Upgrade();
  ExpectCount(peer, 5);
  EXPECT_FALSE(service.Crashed());
}

TEST(ServiceRunTest, shouldSayWhyThereIsNoUpgradeAndGoOn) {
  Service service(Brokered());
  Peer peer(service);
  ExpectCount(peer, 1);
  EXPECT_THAT(FailureOf([&] { service.Upgrade(Counter("formats", {"2"})); }),
              HasSubstr("writes state version 2"));
  EXPECT_THAT(FailureOf([&] { service.Upgrade({"/nowhere/program"}); }), HasSubstr("/nowhere"));
  ExpectCount(peer, 2);
  service.KillOwner();  // the worker that stands by is the old program's
  ExpectCount(peer, 3);
  EXPECT_FALSE(service.Crashed());
}

TEST(ServiceRunTest, shouldRefuseAWorkerWithoutAProgram) {
  EXPECT_THAT(FailureOf([] { Service none({{""}, "counter"}); }), HasSubstr("names no program"));
  EXPECT_THAT(FailureOf([] { Service none({{}, "counter"}); }), HasSubstr("names no program"));
}

TEST(ServiceRunTest, shouldRunNativeWorkers) {
  Service service(Native());
  Peer peer(service);
  ExpectCount(peer, 1);
  service.KillOwner();
  ExpectCount(peer, 2);
  service.HandOff();
  ExpectCount(peer, 3);
  service.Upgrade();
  ExpectCount(peer, 4);
  service.KillOwner();
  ExpectCount(peer, 5);
  EXPECT_FALSE(service.Crashed());
  test_kit::Options doomed = Native();
  doomed.crash_at = "commit-published:1";
  EXPECT_THAT(FailureOf([&] { Service none(doomed); }), HasSubstr("crash_at"));
}

// The process and all that it, and its descendants, have started.
std::vector<pid_t> TreeOf(pid_t root) {
  std::vector<pid_t> tree = {root};
  for (size_t i = 0; i < tree.size(); ++i) {
    for (const pid_t child : harness::ChildrenOf(tree[i])) tree.push_back(child);
  }
  return tree;
}

// Runs this program as a test that has a service, and kills it.
void KillATestThatRuns(const std::string& kind) {
  harness::ChildOptions options;
  options.program = "/proc/self/exe";
  options.arguments = {kind};
  auto started = harness::ChildProcess::Start(options);
  ASSERT_TRUE(started.ok()) << started.status();
  harness::ChildProcess& test = **started;
  const auto said = test.ReadLineWith("serves", kTimeout);
  ASSERT_TRUE(said.ok()) << said.status();
  const std::vector<pid_t> tree = TreeOf(test.pid());
  EXPECT_GE(tree.size(), 7u);  // batond, driver, keeper, control, two workers
  ASSERT_TRUE(test.Kill().ok());
  for (const pid_t process : tree) {
    const absl::Status gone = harness::WaitUntil(
        "the end of " + harness::StatusOf(process, "Name"),
        [process] { return harness::IsGone(process); }, kTimeout);
    EXPECT_TRUE(gone.ok()) << gone;
  }
}

TEST(ServiceRunTest, shouldLeaveNoProcessBehindWhenTheTestIsKilled) {
  KillATestThatRuns("brokered");
}

TEST(ServiceRunTest, shouldLeaveNoWorkerOfAnUpgradeBehind) { KillATestThatRuns("upgraded"); }

TEST(ServiceRunTest, shouldLeaveNoNativeWorkerBehind) { KillATestThatRuns("native"); }

// A test that has a service, and is killed.
[[noreturn]] void Serve(const std::string& kind) {
  Service service(kind == "native" ? Native() : Brokered());
  if (kind == "upgraded") service.Upgrade();
  std::puts("serves");
  std::fflush(stdout);
  for (;;) pause();
}

// One directory has the programs, as an installation does.
void Install(const std::string& directory) {
  for (const char* const program : {"batond", "baton-control", "baton-driver", "baton-keeper",
                                    "baton-launch", "baton-nic", "libbaton-driver.so"}) {
    std::filesystem::copy_file(PathOf(program), directory + "/" + program);
  }
  setenv("BATON_BIN", directory.c_str(), 1);
}

}  // namespace
}  // namespace baton::testing_kit

int main(int argc, char** argv) {
  if (argc == 2 && argv[1][0] != '-') baton::testing_kit::Serve(argv[1]);
  ::testing::InitGoogleTest(&argc, argv);
  const auto directory = baton::harness::TempDirectory::Create();
  if (!directory.ok()) return 1;
  baton::testing_kit::Install(directory->path());
  return RUN_ALL_TESTS();
}
