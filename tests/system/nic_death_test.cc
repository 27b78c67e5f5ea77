// The NIC of a service on the soft device, baton-nic, is killed or stopped under load, or loses its
// driver. Each time it is a lost device: the peer sees a disconnect and nothing that is wrong, the
// service comes up again, operators can read what has happened, and nothing is left behind.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/socket_address.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::ChildrenOf;
using harness::Cluster;
using harness::ClusterOptions;
using harness::IsGone;
using harness::kTimeout;
using harness::NicOf;
using harness::PeerOptions;
using harness::PeerProcess;
using harness::StatusOf;
using harness::WaitUntil;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kLogBytes = 1 << 20;

// Inodes of the memory files that the process maps.
std::set<std::string> MemoryFilesOf(pid_t process) {
  std::set<std::string> inodes;
  std::ifstream maps(absl::StrCat("/proc/", process, "/maps"));
  for (std::string line; std::getline(maps, line);) {
    std::string range, rights, offset, device, inode, path;
    std::istringstream(line) >> range >> rights >> offset >> device >> inode >> path;
    if (absl::StartsWith(path, "/memfd:")) inodes.insert(inode);
  }
  return inodes;
}

// Processes that map one of these memory files, or have it open.
std::vector<pid_t> HoldersOf(const std::set<std::string>& inodes) {
  std::vector<pid_t> holders;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t process = std::atoi(entry.path().filename().c_str());
    if (process <= 0) continue;
    std::set<std::string> files = MemoryFilesOf(process);
    for (const auto& fd : std::filesystem::directory_iterator(entry.path() / "fd", error)) {
      struct stat file = {};
      const bool memory =
          absl::StartsWith(std::filesystem::read_symlink(fd.path(), error).string(), "/memfd:");
      if (memory && stat(fd.path().c_str(), &file) == 0) files.insert(absl::StrCat(file.st_ino));
    }
    const bool holds = std::any_of(files.begin(), files.end(), [&](const std::string& inode) {
      return inodes.count(inode) > 0;
    });
    if (holds) holders.push_back(process);
  }
  return holders;
}

bool CanListenAt(uint16_t port) {
  const auto at = verbs::ToSocketAddress({"127.0.0.1", port}).value();
  const FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return bind(fd.get(), at.get(), at.size) == 0 && listen(fd.get(), 1) == 0;
}

enum class Mode { kBrokered, kNative };

class NicDeath : public harness::ClusterFixture, public ::testing::WithParamInterface<Mode> {
 protected:
  static bool IsNative() { return GetParam() == Mode::kNative; }

  void Start(const std::vector<std::string>& batond_arguments = {}) {
    ClusterOptions options;
    options.shards = 2;
    options.max_connections = 16;
    options.batond_arguments = batond_arguments;
    if (IsNative()) options.native_object = options.binaries.Find("ledger-v1.so").value();
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
    ASSERT_NO_FATAL_FAILURE(StartWorkers());
    driver_ = DriverPid();
    nic_ = NicOf(driver_);
    ASSERT_NE(nic_, 0);
    EXPECT_FALSE(CanListenAt(cluster_->port()));
  }

  void StartWorkers() {
    if (IsNative()) {
      ASSERT_OK(cluster_->WaitUntilListening());
    } else {
      ASSERT_OK_AND_ASSIGN(worker_, cluster_->StartLedger(1));
    }
  }
  // Its messages are the load. `rate`: of all connections, a second; 0: as many as they can.
  void StartPeer(uint64_t rate = 0) {
    PeerOptions options;
    options.connections = 8;
    options.rate = rate;
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(options));
    ASSERT_OK(peer_->Settle());
  }

  pid_t DriverPid() {
    const auto status = cluster_->operators().GetStatus();
    return status.ok() && status->services_size() == 1 && status->services(0).reachable()
               ? status->services(0).driver_pid()
               : 0;
  }
  // Notes the processes of the service, and the memory that they share.
  void NoteProcesses() {
    processes_ = ChildrenOf(driver_);
    processes_.push_back(driver_);
    memory_files_ = MemoryFilesOf(nic_);
    ASSERT_FALSE(memory_files_.empty());
  }

  // The peer ends by itself.
  void ExpectDisconnectAndNothingWrong() {
    ASSERT_OK(peer_->process().WaitEnd(kTimeout));
    const auto result = peer_->Stop();
    ASSERT_OK(result);
    EXPECT_GT(result->Count("messages"), 0u);
    EXPECT_GT(result->Count("disconnects"), 0u) << result->text();
    for (const char* field : {"duplicated", "reordered", "corrupt", "wrong_total"}) {
      EXPECT_TRUE(result->Has(field)) << field;
      EXPECT_EQ(result->Count(field), 0u) << field;
    }
  }

  // The service comes up under another driver, with another NIC, and nothing is left of the former.
  void ExpectToServeAgain() {
    const uint16_t port = cluster_->port();
    ASSERT_OK(WaitUntil(
        "another driver",
        [this] {
          const pid_t now = DriverPid();
          return now != 0 && now != driver_;
        },
        kTimeout));
    if (!IsNative()) ASSERT_OK(worker_->process->WaitEnd(kTimeout));
    for (const pid_t process : processes_) {
      EXPECT_OK(
          WaitUntil(absl::StrCat("the end of process ", process), [&] { return IsGone(process); }));
    }
    // batond keeps the former driver's logs, and recovery memory with them, for `baton inspect`,
    // and the next driver keeps them for the next batond.
    const std::set<pid_t> keep = {cluster_->batond().pid(), DriverPid()};
    EXPECT_OK(WaitUntil("the memory of the former NIC to be nobody's", [&] {
      const std::vector<pid_t> holders = HoldersOf(memory_files_);
      return std::all_of(holders.begin(), holders.end(),
                         [&](pid_t holder) { return keep.count(holder) > 0; });
    }));
    EXPECT_OK(WaitUntil("the former port", [&] { return CanListenAt(port); }));
    ASSERT_NO_FATAL_FAILURE(StartWorkers());
    if (!IsNative()) {
      EXPECT_EQ(cluster_->port(), port);
    }
    const pid_t nic = NicOf(DriverPid());
    EXPECT_NE(nic, 0);
    EXPECT_NE(nic, nic_);
    StartPeer();
    harness::ExpectNothingLost(*peer_);
  }

  std::unique_ptr<harness::LedgerWorker> worker_;  // of a brokered service
  std::unique_ptr<PeerProcess> peer_;
  pid_t driver_ = 0;
  pid_t nic_ = 0;
  std::vector<pid_t> processes_;
  std::set<std::string> memory_files_;
};

using NicFaults = NicDeath;
using NicProcess = NicDeath;

const auto kModes = ::testing::Values(Mode::kBrokered, Mode::kNative);
std::string NameOf(const ::testing::TestParamInfo<Mode>& info) {
  return info.param == Mode::kNative ? "native" : "brokered";
}
INSTANTIATE_TEST_SUITE_P(Modes, NicDeath, kModes, NameOf);
INSTANTIATE_TEST_SUITE_P(Modes, NicFaults, kModes, NameOf);
INSTANTIATE_TEST_SUITE_P(Modes, NicProcess, kModes, NameOf);

TEST_P(NicDeath, shouldBeALostDeviceUnderLoad) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_NO_FATAL_FAILURE(NoteProcesses());
  ASSERT_EQ(kill(nic_, SIGKILL), 0);
  ExpectDisconnectAndNothingWrong();
  ASSERT_NO_FATAL_FAILURE(ExpectToServeAgain());
  EXPECT_THAT(harness::RunBaton(*cluster_, {"events", "ledger"}).out,
              AllOf(HasSubstr("device_lost"), HasSubstr("the process that is its NIC has ended")));
  EXPECT_THAT(cluster_->batond().LogTail(kLogBytes),
              HasSubstr("service ledger: ends: device soft is lost"));
}

TEST_P(NicDeath, shouldBeTheEndOfAStoppedOneUnderLoad) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_NO_FATAL_FAILURE(NoteProcesses());
  ASSERT_EQ(kill(nic_, SIGSTOP), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectToServeAgain());
  EXPECT_THAT(harness::RunBaton(*cluster_, {"events", "ledger"}).out, HasSubstr("device_lost"));
}

// Nobody calls it and no peer sends, so the driver has to notice by itself.
TEST_P(NicDeath, shouldBeTheEndOfAStoppedOneThatNobodyNeeds) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(NoteProcesses());
  ASSERT_EQ(kill(nic_, SIGSTOP), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectToServeAgain());
  EXPECT_THAT(harness::RunBaton(*cluster_, {"events", "ledger"}).out,
              AllOf(HasSubstr("nic_killed"), HasSubstr("device_lost")));
}

TEST_P(NicDeath, shouldFollowThatOfTheDriverUnderLoad) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_NO_FATAL_FAILURE(NoteProcesses());
  harness::KillUnfollowed(driver_);
  ExpectDisconnectAndNothingWrong();
  ASSERT_NO_FATAL_FAILURE(ExpectToServeAgain());
  EXPECT_THAT(cluster_->batond().LogTail(kLogBytes),
              ::testing::ContainsRegex("driver of service ledger: .*killed"));
}

// A stopped NIC notices nothing: the kernel ends it.
TEST_P(NicDeath, shouldFollowThatOfTheDriverEvenIfStopped) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(NoteProcesses());
  ASSERT_EQ(kill(nic_, SIGSTOP), 0);
  harness::KillUnfollowed(driver_);
  ASSERT_NO_FATAL_FAILURE(ExpectToServeAgain());
}

// All connections are established before the first has sent the message that is hit.
constexpr uint64_t kSlow = 400;

TEST_P(NicFaults, shouldLoseTheDevice) {
  ASSERT_NO_FATAL_FAILURE(Start({"--faults", "rules { kind: LOST nth: 100 }"}));
  ASSERT_NO_FATAL_FAILURE(StartPeer(kSlow));
  ASSERT_OK(WaitUntil("another driver", [this] {
    const pid_t now = DriverPid();
    return now != 0 && now != driver_;
  }));
  EXPECT_OK(WaitUntil("the event", [this] {
    const std::string events = harness::RunBaton(*cluster_, {"events", "ledger"}).out;
    return absl::StrContains(events, "device_lost") &&
           absl::StrContains(events, "the fault plan says so");
  }));
}

TEST_P(NicFaults, shouldDelayButLoseNothing) {
  ASSERT_NO_FATAL_FAILURE(Start({"--faults",
                                 "seed: 7 rules { kind: DELAY probability: 0.02 duration_us: 200 } "
                                 "rules { kind: STALL probability: 0.01 duration_us: 1000 } "
                                 "rules { kind: RNR probability: 0.01 }"}));
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  for (int i = 0; i < 10; ++i) ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

TEST_P(NicFaults, shouldCutEachConnectionAlone) {
  ASSERT_NO_FATAL_FAILURE(Start({"--faults", "rules { kind: CUT nth: 200 }"}));
  ASSERT_NO_FATAL_FAILURE(StartPeer(kSlow));
  ExpectDisconnectAndNothingWrong();
  EXPECT_EQ(DriverPid(), driver_);
  EXPECT_FALSE(IsGone(nic_));
}

TEST_P(NicProcess, shouldHaveNoRightButToListen) {
  ASSERT_NO_FATAL_FAILURE(Start());
  constexpr const char* kNone = "0000000000000000";
  constexpr const char* kListen = "0000000000000400";  // CAP_NET_BIND_SERVICE
  for (const char* set : {"CapEff", "CapPrm"}) {
    EXPECT_THAT(StatusOf(nic_, set), ::testing::AnyOf(kNone, kListen)) << set;
  }
  EXPECT_EQ(StatusOf(nic_, "CapInh"), kNone);
  EXPECT_EQ(StatusOf(nic_, "CapAmb"), kNone);
  EXPECT_EQ(StatusOf(nic_, "NoNewPrivs"), "1");
}

TEST_P(NicProcess, shouldBeOfItsUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to run programs as another user";
  ASSERT_NO_FATAL_FAILURE(Start({"--nic-user", "nobody"}));
  EXPECT_EQ(StatusOf(nic_, "Uid"), "65534\t65534\t65534\t65534");
  EXPECT_EQ(StatusOf(nic_, "Groups"), "");
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_NO_FATAL_FAILURE(NoteProcesses());
  harness::KillUnfollowed(driver_);
  ASSERT_NO_FATAL_FAILURE(ExpectToServeAgain());
}

}  // namespace
}  // namespace baton
