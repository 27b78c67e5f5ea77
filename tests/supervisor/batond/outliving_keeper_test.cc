// Keepers and control outlive batond, and the next batond goes on with them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lib/channel/message_channel.h"
#include "proto/baton/internal/batond.pb.h"
#include "supervisor/batond/child_lock.h"
#include "supervisor/config/state_files.h"
#include "tests/supervisor/batond/batond_process.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kService[] = "ledger";

class OutlivingKeeperTest : public ::testing::Test {
 protected:
  // Runs a batond until it is ready, and kills it.
  void RunAndKill(BatondProcess::Options options = {}) {
    BatondProcess batond(stage_, std::move(options));
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
    batond.Signal(SIGKILL);
    ASSERT_EQ(batond.Wait(), 128 + SIGKILL);
  }

  BatondProcess::Options WithServices(const std::vector<std::string>& names,
                                      std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"--dev", "--state-dir", stage_.state_dir(), "--libexec",
                                          stage_.libexec()};
    for (const std::string& name : names) {
      arguments.insert(arguments.end(), {"--service", name});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return WithArguments(std::move(arguments));
  }

  // `service`: fields of the service. `more`: what follows it.
  BatondProcess::Options WithFile(const std::string& service, const std::string& more = "") const {
    std::ofstream(stage_.path() + "/conf")
        << "state_dir: \"" << stage_.state_dir()
        << "\" services { name: \"ledger\" device { soft {} } " << service << " } " << more;
    return WithArguments({"--config", stage_.path() + "/conf", "--libexec", stage_.libexec()});
  }

  pid_t last_keeper() const { return stage_.lives("keeper").back().pid; }

  const Stage stage_;
};

TEST_F(OutlivingKeeperTest, shouldBeTheKeeperOfEachBatondThatFollows) {
  for (int generation = 0; generation < 4; ++generation) RunAndKill();
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
  EXPECT_EQ(stage_.lives("control").size(), 5u);
  EXPECT_FALSE(IsDead(last_keeper()));
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("outlived the former batond, pid " + std::to_string(last_keeper())));
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0) << batond.standard_error();
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("batond_followed: the batond before this one ended; this one, pid "));
  EXPECT_TRUE(Eventually([&] { return IsDead(last_keeper()); }));
}

TEST_F(OutlivingKeeperTest, shouldBeStartedAgainWhenItDiesLater) {
  RunAndKill();
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const pid_t former = last_keeper();
  kill(former, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return last_keeper() != former; })) << batond.standard_error();
}

TEST_F(OutlivingKeeperTest, shouldBeFollowedByAnotherWhenItDiedWithBatond) {
  RunAndKill();
  kill(last_keeper(), SIGKILL);
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);
}

// Its batond is killed before it is ready.
TEST_F(OutlivingKeeperTest, shouldBecomeReadyForTheNextBatond) {
  {
    BatondProcess batond(stage_, WithEnvironment("FAKE_KEEPER", "slow"));
    ASSERT_TRUE(Eventually([&] { return !stage_.lives("keeper").empty(); }));
  }
  BatondProcess batond(stage_);
  std::ofstream(stage_.log_path() + ".go") << "go";
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
}

TEST_F(OutlivingKeeperTest, shouldKeepNobodyWaitingWhenItIsStopped) {
  RunAndKill();
  const pid_t keeper = last_keeper();
  kill(keeper, SIGSTOP);
  BatondProcess batond(stage_, WithServices({kService}, {"--hang-timeout", "2"}));
  EXPECT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_THAT(batond.standard_error(), HasSubstr("has shown no sign of life"));
  EXPECT_FALSE(IsDead(keeper));
  kill(keeper, SIGCONT);
  EXPECT_TRUE(batond.Tells("ledger: ready")) << batond.standard_error();
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
}

TEST_F(OutlivingKeeperTest, shouldEndWhenItsServiceIsNotConfiguredAnyMore) {
  RunAndKill(WithServices({"first", "second"}));
  const std::vector<Life> former = stage_.lives("keeper");
  ASSERT_EQ(former.size(), 2u);
  BatondProcess batond(stage_, WithServices({"second"}));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);
  EXPECT_EQ(std::count_if(former.begin(), former.end(),
                          [](const Life& life) { return IsDead(life.pid); }),
            1);
  EXPECT_EQ(access(KeeperLockPath(stage_.state_dir(), "first").c_str(), F_OK), -1);
}

// The next batond was started with a configuration that has changed.
TEST_F(OutlivingKeeperTest, shouldTakeWhatTheNextBatondsConfigurationChanges) {
  RunAndKill(WithFile(""));
  BatondProcess batond(stage_, WithFile("listeners { port: 7471 } shards: 2"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_TRUE(Eventually([&] { return stage_.lives("taken").size() == 1; }))
      << batond.standard_error();
  EXPECT_EQ(stage_.lives("taken")[0].note, "1");
  EXPECT_THAT(batond.standard_error(), HasSubstr("services[ledger].shards"));
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
}

// The field is not the service's. The driver tells each batond what its keeper has taken.
TEST_F(OutlivingKeeperTest, shouldDistrustWhomTheNextBatondsConfigurationDistrusts) {
  RunAndKill(WithFile(""));
  size_t taken = 0;
  for (const char* distrust : {"distrust_contained_root: true", ""}) {
    BatondProcess batond(stage_, WithFile("", distrust));
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
    ++taken;
    EXPECT_TRUE(Eventually([&] { return stage_.lives("taken").size() == taken; }))
        << batond.standard_error();
  }
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
}

TEST_F(OutlivingKeeperTest, shouldEndWhenNoBatondCanFindIt) {
  RunAndKill();
  std::filesystem::remove(KeeperLockPath(stage_.state_dir(), kService));
  EXPECT_TRUE(Eventually([&] { return IsDead(last_keeper()); }));
}

// A process that is not the keeper, or has not its lock, cannot take its place.
TEST_F(OutlivingKeeperTest, shouldHaveNoImpostor) {
  RunAndKill();
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const auto ask = [&](FileDescriptor lock) {
    auto socket = ConnectUnix(RejoinSocketPath(stage_.state_dir()));
    if (!socket.ok()) return socket.status();
    MessageChannel channel(*std::move(socket));
    internal::RejoinRequest request;
    request.mutable_config()->mutable_service()->set_name(kService);
    std::vector<int> descriptors;
    if (lock) descriptors.push_back(lock.get());
    if (absl::Status sent = channel.Send(request, descriptors); !sent.ok()) return sent;
    internal::RejoinReply reply;
    if (absl::Status got = channel.Receive(&reply, 30'000); !got.ok()) return got;
    return absl::Status(static_cast<absl::StatusCode>(reply.status_code()), reply.status_message());
  };
  EXPECT_EQ(ask(FileDescriptor()).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status other = ask(FileDescriptor(
      open(KeeperLockPath(stage_.state_dir(), kService).c_str(), O_RDWR | O_CLOEXEC)));
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition) << other;
  EXPECT_FALSE(IsDead(last_keeper()));
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
}

// A control of this release. The others above are killed with batond, as a former release's.
class OutlivingControlTest : public OutlivingKeeperTest {
 protected:
  BatondProcess::Options Options(std::vector<std::string> more = {}) const {
    BatondProcess::Options options = WithServices({kService}, std::move(more));
    options.environment["FAKE_CONTROL"] = "outlives";
    return options;
  }
  std::vector<pid_t> Noted(const std::string& note) const {
    std::vector<pid_t> pids;
    for (const Life& life : stage_.lives("control")) {
      if (life.note == note) pids.push_back(life.pid);
    }
    return pids;
  }
};

TEST_F(OutlivingControlTest, shouldBeTheControlOfEachBatondThatFollows) {
  for (int generation = 0; generation < 4; ++generation) RunAndKill(Options());
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const std::vector<pid_t> started = Noted("started");
  ASSERT_EQ(started.size(), 1u);
  EXPECT_TRUE(Eventually([&] { return !Noted("rejoined").empty(); }));
  EXPECT_FALSE(IsDead(started[0]));
  kill(started[0], SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Noted("started").size() == 2; })) << batond.standard_error();
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0) << batond.standard_error();
  EXPECT_TRUE(IsDead(Noted("started").back()));
}

TEST_F(OutlivingControlTest, shouldKeepItsSockets) {
  RunAndKill(Options());
  const auto inode = [&] {
    struct stat status = {};
    EXPECT_EQ(stat(OperatorSocketPath(stage_.state_dir()).c_str(), &status), 0);
    return status.st_ino;
  };
  const ino_t before = inode();
  EXPECT_TRUE(ConnectUnix(OperatorSocketPath(stage_.state_dir())).ok());
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(inode(), before);
}

TEST_F(OutlivingControlTest, shouldBeToldThatABatondFollowsThoughNoDriverIsLeft) {
  RunAndKill(Options());
  kill(last_keeper(), SIGKILL);
  ASSERT_TRUE(Eventually([&] { return IsDead(last_keeper()); }));
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_TRUE(batond.Tells("follows it; it has found no driver")) << batond.standard_error();
}

// There are never two, so the next one starts only when this one is dead.
TEST_F(OutlivingControlTest, shouldBeKilledAndFollowedWhenItDoesNotCome) {
  RunAndKill(Options());
  const pid_t former = Noted("started")[0];
  kill(former, SIGSTOP);
  BatondProcess batond(stage_, Options({"--hang-timeout", "2"}));
  ASSERT_TRUE(Eventually([&] { return Noted("started").size() == 2; })) << batond.standard_error();
  EXPECT_TRUE(IsDead(former));
  EXPECT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
}

TEST_F(OutlivingControlTest, shouldBeStartedAnewWhenServicesHaveChanged) {
  RunAndKill(Options());
  BatondProcess batond(stage_, Options({"--service", "second"}));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_TRUE(Eventually([&] { return Noted("started").size() == 2; })) << batond.standard_error();
  EXPECT_TRUE(IsDead(Noted("started")[0]));
}

// Its services do not start, and their drivers come before control.
TEST_F(OutlivingControlTest, shouldEndWithABatondThatIsStoppedWhileItStarts) {
  RunAndKill(Options());
  BatondProcess::Options options = Options({"--service", "second"});
  options.environment["FAKE_KEEPER_second"] = "hang";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(Eventually([&] { return stage_.lives("keeper").size() == 2; }));
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0) << batond.standard_error();
  EXPECT_TRUE(IsDead(Noted("started")[0]));
  EXPECT_NE(access(OperatorSocketPath(stage_.state_dir()).c_str(), F_OK), 0);
}

TEST_F(OutlivingControlTest, shouldEndWhenNoBatondCanFindIt) {
  RunAndKill(Options());
  std::filesystem::remove(ControlLockPath(stage_.state_dir()));
  EXPECT_TRUE(Eventually([&] { return IsDead(Noted("started")[0]); }));
}

TEST(ChildLockTest, shouldBePaddedForTheControlThatWaits) {
  const TemporaryDirectory directory;
  ChildLock lock(directory.path() + "/lock");
  ASSERT_TRUE(lock.Take().ok());
  ASSERT_TRUE(lock.NameHolder(kPaddedLockBytes).ok());
  std::string text = ReadWholeFile(lock.path());
  EXPECT_EQ(text.size(), kPaddedLockBytes);
  EXPECT_EQ(text.substr(0, text.find('\n')), std::to_string(getpid()));
  ASSERT_TRUE(lock.NameHolder().ok());
  EXPECT_EQ(ReadWholeFile(lock.path()), std::to_string(getpid()) + "\n");
  EXPECT_EQ(write(lock.descriptor(), "1", 1), -1) << "a child could name another";
}

TEST(ChildLockTest, shouldBeTakenBackThroughAnHolderDescriptorAlone) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/lock";
  ChildLock former(path), next(path);
  ASSERT_TRUE(former.Take().ok());
  EXPECT_EQ(next.Take().code(), absl::StatusCode::kUnavailable);
  FileDescriptor fresh(open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(next.Receive(std::move(fresh)).code(), absl::StatusCode::kPermissionDenied);
  FileDescriptor other(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(next.Receive(std::move(other)).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(next.Receive(FileDescriptor(dup(former.descriptor()))).ok());
  former.Drop();
  EXPECT_EQ(former.Take().code(), absl::StatusCode::kUnavailable);
}

TEST(ChildLockTest, shouldNameALivingHolderOfTheRightProgram) {
  const TemporaryDirectory directory;
  ChildLock lock(directory.path() + "/lock");
  ASSERT_TRUE(lock.Take().ok());
  EXPECT_FALSE(lock.Holder({"baton-keeper"}).has_value());
  ASSERT_TRUE(lock.NameHolder().ok());
  EXPECT_FALSE(lock.Holder({"baton-keeper"}).has_value());
  const auto holder = lock.Holder({"baton-driver", "/some/where/outliving_keeper_test"});
  ASSERT_TRUE(holder.has_value());
  EXPECT_EQ(holder->pid, getpid());
}

}  // namespace
}  // namespace baton
