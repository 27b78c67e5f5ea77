// batond, as its user meets it, with fake children in the place of keepers and control.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "supervisor/config/state_files.h"
#include "tests/supervisor/batond/batond_process.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

bool IsSocket(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

std::vector<std::string> Sockets(const Stage& stage) {
  std::vector<std::string> sockets;
  for (const char* name : {"ledger.sock", "ledger.keeper.sock", "operator.sock", "control.sock"}) {
    sockets.push_back(stage.state_dir() + "/" + name);
  }
  return sockets;
}

class BatondTest : public testing::Test {
 protected:
  const Stage stage_;
};

TEST_F(BatondTest, SaysInOneLineThatItIsReadyAndWhereToReachIt) {
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const std::string dir = stage_.state_dir();
  EXPECT_EQ(batond.standard_output(),
            "batond ready: state directory " + dir + ", operator socket " + dir +
                "/operator.sock, services: ledger (worker socket " + dir + "/ledger.sock)\n");
  for (const std::string& socket : Sockets(stage_)) EXPECT_TRUE(IsSocket(socket)) << socket;
  struct stat info = {};
  ASSERT_EQ(stat(dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
}

TEST_F(BatondTest, FindsItsChildrenBesideItself) {
  std::filesystem::copy_file(BuiltBatond(), stage_.libexec() + "/batond");
  BatondProcess::Options options =
      WithArguments({"--dev", "--state-dir", stage_.state_dir(), "--service", "kv"});
  options.program = stage_.libexec() + "/batond";
  BatondProcess batond(stage_, std::move(options));
  EXPECT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_TRUE(IsSocket(stage_.state_dir() + "/kv.sock"));
}

TEST_F(BatondTest, StartsOneKeeperForEachServiceOfItsConfiguration) {
  std::ofstream(stage_.path() + "/conf") << "state_dir: \"" << stage_.state_dir() << "\"\n"
                                         << "services { name: \"kv\" device { soft {} } }\n"
                                         << "services { name: \"queue\" device { soft {} } }\n";
  BatondProcess batond(
      stage_, WithArguments({"--config", stage_.path() + "/conf", "--libexec", stage_.libexec()}));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);
  EXPECT_EQ(stage_.lives("control").size(), 1u);
  EXPECT_TRUE(IsSocket(stage_.state_dir() + "/kv.sock"));
  EXPECT_TRUE(IsSocket(stage_.state_dir() + "/queue.sock"));
}

TEST_F(BatondTest, StartsOneKeeperForEachServiceThatIsNamedWithoutAConfiguration) {
  BatondProcess batond(stage_, WithArguments({"--dev", "--state-dir", stage_.state_dir(),
                                              "--libexec", stage_.libexec(), "--service", "kv",
                                              "--service", "queue", "--shards", "2"}));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);
  EXPECT_EQ(stage_.lives("control").size(), 1u);
  for (const std::string name : {"kv", "queue"}) {
    EXPECT_TRUE(IsSocket(stage_.state_dir() + "/" + name + ".sock"));
    EXPECT_THAT(batond.standard_output(), HasSubstr(name + " (worker socket "));
  }
}

TEST_F(BatondTest, RaisesTheDescriptorLimitForItsChildren) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  BatondProcess batond(stage_);  // inherits the low limit
  setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  rlimit childs = {};
  ASSERT_EQ(prlimit(stage_.lives("keeper")[0].pid, RLIMIT_NOFILE, nullptr, &childs), 0);
  EXPECT_EQ(childs.rlim_cur, before.rlim_max);
}

class KilledChildTest : public BatondTest, public testing::WithParamInterface<const char*> {};

TEST_P(KilledChildTest, IsRunningAgainAndTheOtherNeverStopped) {
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const std::string role = GetParam();
  const std::string other = role == "control" ? "keeper" : "control";
  kill(stage_.lives(role)[0].pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return stage_.lives(role).size() == 2; }));
  EXPECT_EQ(stage_.lives(other).size(), 1u);
  EXPECT_FALSE(IsDead(stage_.lives(other)[0].pid));
  EXPECT_THAT(batond.standard_error(), HasSubstr("was killed by signal 9 (Killed)"));
}

INSTANTIATE_TEST_SUITE_P(Roles, KilledChildTest, testing::Values("control", "keeper"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return std::string(info.param);
                         });

TEST_F(BatondTest, WaitsLongerEachTimeThatAChildDies) {
  BatondProcess batond(stage_, WithEnvironment("FAKE_CONTROL", "fragile"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(Eventually([&] { return stage_.lives("control").size() >= 5; }));
  const std::string log = batond.standard_error();
  size_t at = 0;
  for (const char* delay : {"in 10 ms", "in 20 ms", "in 40 ms", "in 80 ms"}) {
    at = log.find(delay, at);
    EXPECT_NE(at, std::string::npos) << delay << "\n" << log;
  }
}

// Starts a keeper again, and ends as it is told, whatever has become of its standard error.
void ExpectWorks(const Stage& stage, BatondProcess& batond) {
  kill(stage.lives("keeper")[0].pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return stage.lives("keeper").size() == 2; }));
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
}

TEST_F(BatondTest, WorksThoughNobodyReadsItsLog) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const FileDescriptor reader(ends[0]), writer(ends[1]);
  const std::string page(4096, '.');
  while (write(writer.get(), page.data(), page.size()) > 0) {
  }
  ASSERT_EQ(fcntl(writer.get(), F_SETFL, 0), 0);  // who writes more waits
  BatondProcess::Options options;
  options.standard_error = writer.get();
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady());
  ExpectWorks(stage_, batond);
}

// Any process that holds batond's standard error can shut it down where it is a socket, as
// systemd's is.
TEST_F(BatondTest, WorksWhenItsLogWasShutDown) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor reader(ends[0]), writer(ends[1]);
  BatondProcess::Options options;
  options.standard_error = writer.get();
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady());
  ASSERT_EQ(shutdown(writer.get(), SHUT_RDWR), 0);
  ExpectWorks(stage_, batond);
}

class StopSignalTest : public BatondTest, public testing::WithParamInterface<int> {};

TEST_P(StopSignalTest, EndsChildrenRemovesSocketsAndExitsWithZero) {
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  batond.Signal(GetParam());
  EXPECT_EQ(batond.Wait(), 0) << batond.standard_error();
  for (const std::string& socket : Sockets(stage_)) EXPECT_FALSE(IsSocket(socket)) << socket;
  EXPECT_TRUE(IsDead(stage_.lives("keeper")[0].pid));
  EXPECT_TRUE(IsDead(stage_.lives("control")[0].pid));
}

INSTANTIATE_TEST_SUITE_P(Signals, StopSignalTest, testing::Values(SIGTERM, SIGINT),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(sigabbrev_np(info.param));
                         });

TEST_F(BatondTest, KillsChildrenThatDoNotStopInTime) {
  BatondProcess::Options options =
      WithArguments({"--dev", "--state-dir", stage_.state_dir(), "--libexec", stage_.libexec(),
                     "--stop-timeout", "0.2"});
  options.environment = {{"FAKE_KEEPER", "stubborn"}, {"FAKE_CONTROL", "stubborn"}};
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0) << batond.standard_error();
  EXPECT_TRUE(IsDead(stage_.lives("keeper")[0].pid));
  EXPECT_TRUE(IsDead(stage_.lives("control")[0].pid));
}

TEST_F(BatondTest, WaitsForChildrenOfAFormerBatondThatAreNotGoneYet) {
  std::filesystem::create_directory(stage_.state_dir());
  const std::string lock = stage_.state_dir() + "/ledger.keeper.lock";
  FileDescriptor former_child(open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(former_child.get(), LOCK_EX), 0);
  BatondProcess batond(stage_);
  // It has its own lock, and so has come to the other one.
  ASSERT_TRUE(
      Eventually([&] { return !ReadWholeFile(stage_.state_dir() + "/batond.lock").empty(); }));
  EXPECT_EQ(stage_.lives("keeper").size(), 0u);
  former_child.Reset();
  EXPECT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  former_child.Reset(open(lock.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(flock(former_child.get(), LOCK_EX | LOCK_NB), -1) << "batond's child does not hold it";
}

bool HasOpen(pid_t pid, const std::string& path) {
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(entry.path(), ignored) == path) return true;
  }
  return false;
}

TEST_F(BatondTest, ChildrenHoldTheirLockAndNotBatonds) {
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  for (const auto& [role, lock] :
       {std::pair("keeper", "/ledger.keeper.lock"), std::pair("control", "/control.lock")}) {
    const pid_t pid = stage_.lives(role)[0].pid;
    EXPECT_TRUE(HasOpen(pid, stage_.state_dir() + lock)) << role;
    EXPECT_FALSE(HasOpen(pid, stage_.state_dir() + "/batond.lock")) << role;
  }
}

TEST_F(BatondTest, RefusesASecondBatondAndNamesTheFirst) {
  BatondProcess first(stage_);
  ASSERT_TRUE(first.WaitUntilReady()) << first.standard_error();
  BatondProcess second(stage_);
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.standard_error(),
              HasSubstr("another batond, pid " + std::to_string(first.pid()) +
                        ", has the state directory " + stage_.state_dir() + "; stop it"));
  EXPECT_FALSE(IsDead(stage_.lives("keeper")[0].pid));
}

TEST_F(BatondTest, RefusesAnUnknownFieldWithItsLine) {
  const std::string file = stage_.path() + "/conf";
  std::ofstream(file) << "state_dir: \"/s\"\nservices {\n  name: \"kv\"\n  shardz: 2\n}\n";
  BatondProcess batond(stage_, WithArguments({"--config", file}));
  EXPECT_EQ(batond.Wait(), 2);
  EXPECT_EQ(batond.standard_error(),
            file +
                ":4:9: Message type \"baton.v1.ServiceConfig\" has no field named "
                "\"shardz\".\n");
}

TEST_F(BatondTest, RefusesWrongCommandLines) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--shards", "2"},
           {"--dev", "--config", "x"},
           {"--dev", "--listen", "7471"},
           {"--dev", "--service", "kv", "--service", "kv"},
           {"--dev", "--service", "kv", "--service", "queue", "--listen", "127.0.0.1:7471"},
           {"--dev", "--listen", "::1:7471"},
           {"--dev", "--shards", "65"},
           {"--dev", "--max-connections", "4294967297"},
           {"--dev", "--gid-index", "1"},
           {"--dev", "--device", "rdma", "--gid-index", "256"},
           {"--dev", "--nonsense"},
           {"--config", "/nonexistent"}}) {
    BatondProcess batond(stage_, WithArguments(arguments));
    EXPECT_EQ(batond.Wait(), 2) << arguments[0] << ": " << batond.standard_error();
    EXPECT_NE(batond.standard_error(), "");
  }
}

TEST_F(BatondTest, ChecksAConfigurationWithoutStartingAnything) {
  BatondProcess batond(stage_, WithArguments({"--dev", "--state-dir", stage_.state_dir(),
                                              "--listen", "[::1]:7471", "--check"}));
  EXPECT_EQ(batond.Wait(), 0) << batond.standard_error();
  BatondProcess of_rdma(
      stage_, WithArguments({"--dev", "--state-dir", stage_.state_dir(), "--device", "rdma:mlx5_0",
                             "--gid-index", "0", "--check"}));
  EXPECT_EQ(of_rdma.Wait(), 0) << of_rdma.standard_error();
  EXPECT_FALSE(std::filesystem::exists(stage_.state_dir()));
}

// Half a second for each child, and 4 s for the GiB that a keeper would fill.
TEST_F(BatondTest, GivesAKeeperTimeForItsArena) {
  BatondProcess::Options options =
      WithArguments({"--dev", "--state-dir", stage_.state_dir(), "--libexec", stage_.libexec(),
                     "--start-timeout", "0.5", "--buffer-bytes", "1073741824"});
  options.environment["FAKE_KEEPER"] = "hang";
  BatondProcess batond(stage_, std::move(options));
  EXPECT_EQ(batond.Wait(), 1);
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("driver of service ledger: not ready after 4500 ms, killing it"));
}

class ServiceLogTest : public BatondTest {
 protected:
  // Makes service kv log at `log`.
  BatondProcess::Options Logging(const std::string& log) const {
    std::ofstream(stage_.path() + "/config")
        << "state_dir: \"" << stage_.state_dir()
        << "\" services { name: \"kv\" device { soft {} } log: \"" << log << "\" }";
    return WithArguments({"--config", stage_.path() + "/config", "--libexec", stage_.libexec()});
  }
  std::string StandardErrorOf(pid_t pid) const {
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/fd/2");
  }
};

TEST_F(ServiceLogTest, AKeeperLogsToAFileOfItsOwn) {
  const std::string log = stage_.path() + "/kv.log";
  BatondProcess batond(stage_, Logging(log));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(StandardErrorOf(stage_.lives("keeper")[0].pid), log);
  EXPECT_NE(StandardErrorOf(stage_.lives("control")[0].pid), log);
  // A rotation has moved the log away: the next keeper creates it anew.
  std::filesystem::rename(log, log + ".1");
  kill(stage_.lives("keeper")[0].pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return stage_.lives("keeper").size() == 2; }));
  EXPECT_EQ(StandardErrorOf(stage_.lives("keeper")[1].pid), log);
}

TEST_F(ServiceLogTest, AKeeperWhoseLogCannotBeHadServesAllTheSame) {
  const std::string fifo = stage_.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& log : {stage_.path() + "/none/kv.log", fifo, stage_.path()}) {
    BatondProcess batond(stage_, Logging(log));
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
    EXPECT_THAT(batond.standard_error(), HasSubstr("driver of service kv: logs here: log: " + log));
    const pid_t keeper = stage_.lives("keeper").back().pid;
    EXPECT_EQ(StandardErrorOf(keeper), StandardErrorOf(batond.pid()));
    batond.Signal(SIGTERM);  // killed, it would leave its keeper to the next
    ASSERT_EQ(batond.Wait(), 0);
  }
}

struct BadStart {
  const char* name;
  const char* variable;
  const char* mode;
  const char* message;
};

void PrintTo(const BadStart& bad, std::ostream* out) { *out << bad.name; }

class BadStartTest : public BatondTest, public testing::WithParamInterface<BadStart> {};

TEST_P(BadStartTest, EndsBatondAndSaysWhichChildAndHow) {
  BatondProcess::Options options =
      WithArguments({"--dev", "--state-dir", stage_.state_dir(), "--libexec", stage_.libexec(),
                     "--start-timeout", "0.5"});
  options.environment[GetParam().variable] = GetParam().mode;
  BatondProcess batond(stage_, std::move(options));
  EXPECT_EQ(batond.Wait(), 1);
  EXPECT_EQ(batond.standard_output(), "");
  EXPECT_THAT(batond.standard_error(), HasSubstr(GetParam().message));
  for (const Life& life : stage_.lives("keeper")) EXPECT_TRUE(IsDead(life.pid));
  for (const std::string& socket : Sockets(stage_)) EXPECT_FALSE(IsSocket(socket)) << socket;
}

INSTANTIATE_TEST_SUITE_P(
    Children, BadStartTest,
    testing::Values(
        BadStart{"KeeperExits", "FAKE_KEEPER", "exit",
                 "batond: driver of service ledger ended with exit code 3 while starting"},
        BadStart{"KeeperCrashes", "FAKE_KEEPER", "crash",
                 "batond: driver of service ledger was killed by signal 9 (Killed)"},
        BadStart{"ControlExits", "FAKE_CONTROL", "exit",
                 "batond: control ended with exit code 3 while starting"},
        BadStart{"ControlHangs", "FAKE_CONTROL", "hang", "control: not ready after 500 ms"}),
    [](const testing::TestParamInfo<BadStart>& info) { return info.param.name; });

// With a configuration of two services, "kv" and "queue".
BatondProcess::Options OfTwoServices(const Stage& stage, std::vector<std::string> more = {},
                                     const std::string& policy = "") {
  std::ofstream conf(stage.path() + "/conf");
  conf << "state_dir: \"" << stage.state_dir() << "\"\n";
  for (const char* const name : {"kv", "queue"}) {
    conf << "services { name: \"" << name << "\" device { soft {} } policy { " << policy
         << " } }\n";
  }
  conf.close();
  std::vector<std::string> arguments = {"--config", stage.path() + "/conf", "--libexec",
                                        stage.libexec()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return WithArguments(std::move(arguments));
}

class DegradedStartTest : public BatondTest {};

TEST_F(DegradedStartTest, ServesWithTheOthersAndGoesOnTrying) {
  BatondProcess::Options options = OfTwoServices(stage_);
  options.environment["FAKE_KEEPER_kv"] = "absent";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_THAT(batond.standard_output(),
              HasSubstr("services: queue (worker socket " + stage_.state_dir() +
                        "/queue.sock); degraded, being started again: driver of service kv (no "
                        "device)\n"));
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("driver of service kv: ended with exit code 3 while starting"));
  EXPECT_EQ(stage_.lives("control").size(), 1u);
  std::ofstream(stage_.log_path() + ".go") << "";
  ASSERT_TRUE(Eventually([&] { return stage_.lives("keeper").size() == 2; }));
  EXPECT_EQ(stage_.lives("control").size(), 1u);  // nobody else was started again
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
}

TEST_F(DegradedStartTest, ServesWhenControlDoesNotStart) {
  BatondProcess::Options options = OfTwoServices(stage_);
  options.environment["FAKE_CONTROL"] = "exit";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_THAT(batond.standard_output(), HasSubstr("; degraded, being started again: control\n"));
  ASSERT_TRUE(Eventually([&] { return stage_.lives("control").size() > 2; }));
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);
}

TEST_F(DegradedStartTest, GoesOnTryingWhenAProgramIsNotThere) {
  std::filesystem::rename(stage_.libexec() + "/baton-driver", stage_.path() + "/away");
  BatondProcess batond(stage_, OfTwoServices(stage_));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_THAT(batond.standard_output(), HasSubstr("services: none; degraded"));
  std::filesystem::rename(stage_.path() + "/away", stage_.libexec() + "/baton-driver");
  EXPECT_TRUE(Eventually([&] { return stage_.lives("keeper").size() == 2; }));
}

TEST_F(DegradedStartTest, StopsWhileItGoesOnTrying) {
  BatondProcess::Options options = OfTwoServices(stage_);
  options.environment["FAKE_KEEPER"] = "absent";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
}

TEST_F(DegradedStartTest, IsTheEndForWhoIsStrict) {
  BatondProcess::Options options = OfTwoServices(stage_, {"--strict"});
  options.environment["FAKE_KEEPER_kv"] = "absent";
  BatondProcess batond(stage_, std::move(options));
  EXPECT_EQ(batond.Wait(), 1);
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("batond: driver of service kv ended with exit code 3 while starting"));
  for (const Life& life : stage_.lives("keeper")) EXPECT_TRUE(IsDead(life.pid));
}

class HangTest : public BatondTest {};

TEST_F(HangTest, TellsWhoShowsNoSignOfLifeAndWhenItDoesAgain) {
  BatondProcess batond(stage_, OfTwoServices(stage_, {"--hang-timeout", "2"}));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const pid_t stopped = stage_.lives("keeper")[0].pid;
  kill(stopped, SIGSTOP);
  ASSERT_TRUE(batond.Tells("has shown no sign of life for 2000 ms"));
  EXPECT_THAT(batond.standard_error(), HasSubstr("/proc/" + std::to_string(stopped) + "/stack"));
  kill(stopped, SIGCONT);
  ASSERT_TRUE(batond.Tells("shows again that it lives"));
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);  // nobody was started again
}

TEST_F(HangTest, StartsAKeeperAgainWhereThePolicySaysSo) {
  BatondProcess batond(stage_, OfTwoServices(stage_, {"--hang-timeout", "2"},
                                             "on_keeper_hang: ON_KEEPER_HANG_RESTART"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const pid_t stopped = stage_.lives("keeper")[0].pid;
  kill(stopped, SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return stage_.lives("keeper").size() >= 3; }));
  EXPECT_TRUE(IsDead(stopped));
}

// Whatever the policies of services say: nothing ends with control.
TEST_F(HangTest, StartsAControlAgainThatHangs) {
  BatondProcess batond(stage_, OfTwoServices(stage_, {"--hang-timeout", "2"}));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const pid_t stopped = stage_.lives("control")[0].pid;
  kill(stopped, SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return stage_.lives("control").size() >= 2; }));
  EXPECT_TRUE(IsDead(stopped));
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("control_hangs: control: has shown no sign of life for 2000 ms"));
  EXPECT_TRUE(
      batond.Tells("control_followed: control: the process before this one hung, and was "
                   "killed by signal 9"))
      << batond.standard_error();
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);
}

TEST_F(HangTest, TellsOnceThatADriverSaysThatItsKeeperHangs) {
  BatondProcess::Options options = OfTwoServices(stage_, {"--hang-timeout", "2"});
  options.environment["FAKE_KEEPER_kv"] = "keeper_hangs";
  options.environment["FAKE_CONTROL"] = "keeper_hangs";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const std::string line = "keeper_hangs: driver of service kv: its keeper has shown no sign";
  ASSERT_TRUE(batond.Tells(line));
  // Batond looks several more times at the signs of all children until it tells of control.
  kill(stage_.lives("control")[0].pid, SIGSTOP);
  ASSERT_TRUE(batond.Tells("control_hangs: "));
  const std::string log = batond.standard_error();
  EXPECT_EQ(log.find(line), log.rfind(line));
  EXPECT_EQ(log.find("keeper_hangs: driver of service queue"), std::string::npos);
  EXPECT_EQ(log.find("keeper_hangs: control"), std::string::npos);  // it may be somebody else's
}

// Each control makes its sockets anew.
TEST_F(BatondTest, LinksControlsSocketIntoTheDirectoryOfEachService) {
  BatondProcess batond(stage_, OfTwoServices(stage_));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const auto reached = [&](const std::string& service) {
    return ConnectUnix(stage_.state_dir() + "/" + service + "/stream.sock", 0).ok();
  };
  EXPECT_TRUE(reached("kv"));
  EXPECT_TRUE(reached("queue"));
  kill(stage_.lives("control")[0].pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return stage_.lives("control").size() == 2; }));
  EXPECT_TRUE(Eventually([&] { return reached("kv") && reached("queue"); }));
}

// The keeper's policy is another than the configuration's by then.
TEST_F(HangTest, StartsAKeeperAgainWhoseLastSignSaysSo) {
  BatondProcess::Options options = OfTwoServices(stage_, {"--hang-timeout", "2"});
  options.environment["FAKE_KEEPER"] = "restart";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(Eventually([&] { return !stage_.lives("sign").empty(); }));
  const pid_t first = stage_.lives("sign")[0].pid;
  kill(first, SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return stage_.lives("keeper").size() >= 3; }));
  EXPECT_TRUE(IsDead(first));
}

TEST_F(HangTest, LeavesAKeeperAloneWhoseLastSignSaysSo) {
  BatondProcess::Options options =
      OfTwoServices(stage_, {"--hang-timeout", "2"}, "on_keeper_hang: ON_KEEPER_HANG_RESTART");
  options.environment["FAKE_KEEPER"] = "report";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(Eventually([&] { return !stage_.lives("sign").empty(); }));
  const pid_t stopped = stage_.lives("sign")[0].pid;
  kill(stopped, SIGSTOP);
  ASSERT_TRUE(batond.Tells("has shown no sign of life"));
  kill(stopped, SIGCONT);
  ASSERT_TRUE(batond.Tells("shows again that it lives"));
  EXPECT_FALSE(IsDead(stopped));
}

TEST_F(BatondTest, NamesAProgramThatIsNotThere) {
  std::filesystem::remove(stage_.libexec() + "/baton-driver");
  BatondProcess batond(stage_);
  EXPECT_EQ(batond.Wait(), 1);
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("batond: driver of service ledger: cannot run " + stage_.libexec() +
                        "/baton-driver: No such file or directory"));
}

TEST_F(BatondTest, NamesANetworkNamespaceThatIsNotThere) {
  const auto start = [&](const std::string& name) {
    BatondProcess batond(stage_,
                         WithArguments({"--dev", "--state-dir", stage_.state_dir(), "--libexec",
                                        stage_.libexec(), "--network-namespace", name}));
    EXPECT_EQ(batond.Wait(), 1);
    return batond.standard_error();
  };
  EXPECT_THAT(start("baton-nowhere"),
              HasSubstr("batond: service ledger: network_namespace: baton-nowhere: "
                        "/run/netns/baton-nowhere: No such file or directory (errno 2); "
                        "ip netns add baton-nowhere\n"));
  EXPECT_THAT(start("/dev/null"),
              HasSubstr("network_namespace: /dev/null: /dev/null is no network namespace; name "
                        "one that is there: ip netns list"));
  EXPECT_TRUE(stage_.lives("keeper").empty());
}

constexpr uid_t kNobody = 65534;

TEST_F(BatondTest, NamesAStateDirectoryThatItCannotMake) {
  BatondProcess::Options options =
      WithArguments({"--dev", "--state-dir", "/proc/baton", "--libexec", stage_.libexec()});
  BatondProcess batond(stage_, std::move(options));
  EXPECT_EQ(batond.Wait(), 1);
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("batond: cannot make the state directory /proc/baton"));
}

TEST_F(BatondTest, NamesAStateDirectoryThatIsAnothersOrReadOnly) {
  std::filesystem::create_directory(stage_.state_dir());
  chmod(stage_.state_dir().c_str(), 0555);
  const bool root = geteuid() == 0;
  std::string program = BuiltBatond();
  BatondProcess::Options options;
  if (root) {
    // Another user may not be able to reach what was built.
    program = stage_.path() + "/batond";
    std::filesystem::copy_file(BuiltBatond(), program);
    chmod(stage_.path().c_str(), 0755);
    options.program = program;
    options.run_as = kNobody;
  }
  BatondProcess batond(stage_, std::move(options));
  EXPECT_EQ(batond.Wait(), 1);
  EXPECT_THAT(batond.standard_error(),
              HasSubstr(root ? "belongs to uid 0 and batond runs as uid 65534"
                             : "the state directory is not writable: cannot open"));
}

TEST_F(BatondTest, RefusesAStateDirectoryThatOthersMayWrite) {
  std::filesystem::create_directory(stage_.state_dir());
  chmod(stage_.state_dir().c_str(), 0777);
  BatondProcess batond(stage_);
  EXPECT_EQ(batond.Wait(), 1);
  EXPECT_THAT(batond.standard_error(), HasSubstr("is writable by others; chmod go-w "));
}

// User and system time of a process in clock ticks, and how often it gave up the processor.
struct Effort {
  uint64_t ticks = 0;
  uint64_t switches = 0;
};

Effort EffortOf(pid_t pid) {
  Effort effort;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    uint64_t value = 0;
    if (word == "voluntary_ctxt_switches:" && status >> value) effort.switches = value;
  }
  const std::string stat = ReadWholeFile("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream words(stat.substr(stat.rfind(") ") + 2));
  std::string word;
  uint64_t user = 0;
  uint64_t system = 0;
  for (int i = 0; i < 11; ++i) words >> word;
  words >> user >> system;
  effort.ticks = user + system;
  return effort;
}

TEST_F(BatondTest, DoesNothingWhileNothingHappens) {
  BatondProcess batond(stage_);
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  // It has gone to sleep after the ready line once so many looks at it are the same. One that waits
  // for a processor looks like one that sleeps for a moment.
  constexpr int kQuietLooks = 50;
  Effort before;
  int quiet = 0;
  ASSERT_TRUE(Eventually([&] {
    const Effort now = EffortOf(batond.pid());
    quiet = now.switches == before.switches ? quiet + 1 : 0;
    before = now;
    return quiet == kQuietLooks;
  }));
  // The span that is watched, not a wait for something to become true.
  const auto until = steady_clock::now() + milliseconds(500);
  while (steady_clock::now() < until) usleep(10'000);
  const Effort after = EffortOf(batond.pid());
  EXPECT_LE(after.switches, before.switches + 1);
  EXPECT_LE(after.ticks, before.ticks + 1);
}

// Two services of two names, and those who may operate.
void WriteConfig(const Stage& stage, const std::string& more) {
  std::ofstream(stage.path() + "/conf.new")
      << "state_dir: \"" << stage.state_dir() << "\" services { name: \"kv\" device { soft {} } } "
      << more;
  std::filesystem::rename(stage.path() + "/conf.new", stage.path() + "/conf");
}

BatondProcess::Options ReadingConfig(const Stage& stage, const std::string& control) {
  BatondProcess::Options options = WithEnvironment("FAKE_CONTROL", control);
  options.arguments = {"--config", stage.path() + "/conf", "--libexec", stage.libexec()};
  return options;
}

bool ControlNoted(const Stage& stage, const std::string& note) {
  return Eventually([&] {
    for (const Life& life : stage.lives("control")) {
      if (life.note == note) return true;
    }
    return false;
  });
}

TEST_F(BatondTest, ReadsItsConfigurationAgainWhenItIsAskedAndAtSighup) {
  WriteConfig(stage_, "operator_uids: 1 viewer_uids: 2");
  BatondProcess batond(stage_, ReadingConfig(stage_, "reload"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_TRUE(ControlNoted(stage_, "7:0;uid=1"));
  WriteConfig(stage_, "operator_uids: 3 viewer_uids: 2 log_format: JSON");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(ControlNoted(stage_, "0:0;taken=operator_uids;not=log_format;uid=3"));
  EXPECT_THAT(batond.standard_error(), HasSubstr("taken: operator_uids"));
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("not taken: log_format: every process reads it when it starts"));
  // A control that is started later has it from its start, and nothing is new.
  kill(stage_.lives("control").front().pid, SIGKILL);
  EXPECT_TRUE(ControlNoted(stage_, "7:0;not=log_format;uid=3"));
}

TEST_F(BatondTest, TellsEachControlWhatHasHappened) {
  WriteConfig(stage_, "");
  BatondProcess batond(stage_, ReadingConfig(stage_, "reload"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const auto told = [&](pid_t control, const std::string& kind) {
    return Eventually([&] {
      for (const Life& life : stage_.lives("event")) {
        if (life.pid == control && life.note == kind) return true;
      }
      return false;
    });
  };
  const pid_t control = stage_.lives("control").front().pid;
  kill(stage_.lives("keeper").front().pid, SIGKILL);
  EXPECT_TRUE(told(control, "driver_followed")) << batond.standard_error();
  kill(control, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return stage_.lives("control").back().pid != control; }));
  const pid_t next = stage_.lives("control").back().pid;
  EXPECT_TRUE(told(next, "driver_followed"));
  EXPECT_TRUE(told(next, "control_followed"));
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("driver_followed: driver of service kv: the process before this one "
                        "was killed by signal 9"));
}

TEST_F(BatondTest, StartsAServiceThatItsConfigurationGains) {
  WriteConfig(stage_, "");
  BatondProcess batond(stage_, ReadingConfig(stage_, ""));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  WriteConfig(stage_, "services { name: \"new\" device { soft {} } }");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return IsSocket(WorkerSocketPath(stage_.state_dir(), "new")); }))
      << batond.standard_error();
  EXPECT_TRUE(Eventually([&] { return stage_.lives("keeper").size() == 2; }));
  EXPECT_FALSE(IsDead(stage_.lives("keeper")[0].pid));
  // Control reads the names of services when it starts.
  EXPECT_TRUE(Eventually([&] { return stage_.lives("control").size() == 2; }));
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
  for (const Life& life : stage_.lives("keeper")) EXPECT_TRUE(IsDead(life.pid));
  EXPECT_FALSE(IsSocket(WorkerSocketPath(stage_.state_dir(), "new")));
}

// Control reads its addresses, and whether it has an endpoint, when it starts.
TEST_F(BatondTest, StartsControlAnewForItsAddresses) {
  std::ofstream(stage_.path() + "/key") << "the-key";
  const auto endpoint = [&](const std::string& address) {
    const std::string key = "_file: \"" + stage_.path() + "/key\" ";
    return "operator_endpoint { address: \"" + address + "\" certificate" + key + "key" + key +
           "client_ca" + key + "viewers: \"x\" }";
  };
  WriteConfig(stage_, "");
  BatondProcess batond(stage_, ReadingConfig(stage_, ""));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  size_t controls = 1;
  for (const std::string& more :
       {std::string("metrics_address: \"127.0.0.1:9464\""), std::string(),
        endpoint("127.0.0.1:9444"), endpoint("127.0.0.1:9445"), std::string()}) {
    SCOPED_TRACE(more);
    WriteConfig(stage_, more);
    batond.Signal(SIGHUP);
    ++controls;
    ASSERT_TRUE(Eventually([&] { return stage_.lives("control").size() == controls; }))
        << batond.standard_error();
  }
}

TEST_F(BatondTest, EndsConnectionsOnlyWhenItIsToldTo) {
  const std::string second = "services { name: \"second\" device { soft {} } }";
  WriteConfig(stage_, second);
  BatondProcess batond(stage_, ReadingConfig(stage_, "disconnect"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(ControlNoted(stage_, "7:0"));
  const std::vector<Life> keepers = stage_.lives("keeper");
  ASSERT_EQ(keepers.size(), 2u);
  WriteConfig(stage_, "");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(ControlNoted(stage_, "0:0;not=services[second]"));
  for (const Life& life : keepers) EXPECT_FALSE(IsDead(life.pid));
  // The next control asks for it.
  kill(stage_.lives("control").front().pid, SIGKILL);
  EXPECT_TRUE(ControlNoted(stage_, "7:0;taken=services[second]")) << batond.standard_error();
  EXPECT_TRUE(Eventually([&] {
    return std::count_if(keepers.begin(), keepers.end(),
                         [](const Life& life) { return IsDead(life.pid); }) == 1;
  }));
  EXPECT_TRUE(
      Eventually([&] { return !IsSocket(WorkerSocketPath(stage_.state_dir(), "second")); }));
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);
}

TEST_F(BatondTest, KillsAKeeperWhoseServiceIsGoneAndThatDoesNotEnd) {
  WriteConfig(stage_, "services { name: \"second\" device { soft {} } }");
  BatondProcess::Options options = ReadingConfig(stage_, "disconnect");
  options.environment["FAKE_KEEPER_second"] = "stubborn";
  options.arguments.insert(options.arguments.end(), {"--stop-timeout", "0.2"});
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(ControlNoted(stage_, "7:0"));
  WriteConfig(stage_, "");
  kill(stage_.lives("control").front().pid, SIGKILL);
  EXPECT_TRUE(ControlNoted(stage_, "7:0;taken=services[second]")) << batond.standard_error();
  EXPECT_TRUE(
      Eventually([&] { return !IsSocket(WorkerSocketPath(stage_.state_dir(), "second")); }));
  EXPECT_THAT(batond.standard_error(), HasSubstr("second: does not stop, killing it"));
}

// A program that is not there would end a strict batond that starts.
TEST_F(BatondTest, DoesNotEndForAServiceThatItsConfigurationGains) {
  WriteConfig(stage_, "");
  BatondProcess::Options options = ReadingConfig(stage_, "");
  options.arguments.emplace_back("--strict");
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  std::filesystem::rename(stage_.libexec() + "/baton-driver", stage_.libexec() + "/elsewhere");
  WriteConfig(stage_, "services { name: \"new\" device { soft {} } }");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(batond.Tells("driver of service new: starting again")) << batond.standard_error();
  std::filesystem::rename(stage_.libexec() + "/elsewhere", stage_.libexec() + "/baton-driver");
  EXPECT_TRUE(Eventually([&] { return IsSocket(WorkerSocketPath(stage_.state_dir(), "new")); }))
      << batond.standard_error();
}

TEST_F(BatondTest, StartsTheKeeperOfAChangedServiceAnewWhenItIsToldTo) {
  WriteConfig(stage_, "services { name: \"second\" device { soft {} } }");
  BatondProcess batond(stage_, ReadingConfig(stage_, "disconnect"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(ControlNoted(stage_, "7:0"));
  const std::vector<Life> keepers = stage_.lives("keeper");
  WriteConfig(stage_, "services { name: \"second\" device { soft {} } shards: 2 }");
  kill(stage_.lives("control").front().pid, SIGKILL);
  EXPECT_TRUE(ControlNoted(stage_, "7:0;taken=services[second].shards")) << batond.standard_error();
  EXPECT_TRUE(Eventually([&] { return stage_.lives("keeper").size() == 3; }));
  EXPECT_EQ(std::count_if(keepers.begin(), keepers.end(),
                          [](const Life& life) { return IsDead(life.pid); }),
            1);
}

constexpr char kSecond[] = "services { name: \"second\" device { soft {} } }";
constexpr char kSecondListens[] =
    "services { name: \"second\" device { soft {} } listeners { port: 7471 } }";

TEST_F(BatondTest, HasARunningKeeperTakeAChangedConfiguration) {
  WriteConfig(stage_, kSecond);
  BatondProcess batond(stage_, ReadingConfig(stage_, "reload"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(ControlNoted(stage_, "7:0"));
  WriteConfig(stage_, kSecondListens);
  batond.Signal(SIGHUP);
  EXPECT_TRUE(ControlNoted(stage_, "0:0;taken=services[second].listeners"))
      << batond.standard_error();
  const std::vector<Life> taken = stage_.lives("taken");
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].note, "1");
  EXPECT_EQ(stage_.lives("keeper").size(), 2u);
  // It is in force now: the next control finds nothing new.
  kill(stage_.lives("control").front().pid, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return stage_.lives("control").back().note == "7:0"; }));
  // A keeper that is started later has it from its start.
  kill(taken[0].pid, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return stage_.lives("keeper").size() == 3; }));
  EXPECT_EQ(stage_.lives("taken").size(), 1u);
}

TEST_F(BatondTest, TellsWhatAKeeperDidNotTake) {
  WriteConfig(stage_, kSecond);
  BatondProcess::Options options = ReadingConfig(stage_, "reload");
  options.environment["FAKE_KEEPER_second"] = "picky";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(ControlNoted(stage_, "7:0"));
  WriteConfig(stage_,
              "services { name: \"second\" device { soft {} } listeners { port: 7471 }"
              " worker_uids: 7 }");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(
      ControlNoted(stage_, "0:0;taken=services[second].worker_uids;not=services[second].listeners"))
      << batond.standard_error();
  EXPECT_THAT(batond.standard_error(), HasSubstr("services[second].listeners: the port is taken"));
}

TEST_F(BatondTest, GoesOnWithoutTheAnswerOfAKeeperThatHangs) {
  WriteConfig(stage_, kSecond);
  BatondProcess::Options options = ReadingConfig(stage_, "reload");
  options.environment["FAKE_KEEPER_second"] = "deaf";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(ControlNoted(stage_, "7:0"));
  kill(stage_.lives("keeper").back().pid, SIGSTOP);
  kill(stage_.lives("keeper").front().pid, SIGSTOP);
  WriteConfig(stage_, std::string(kSecondListens) + " operator_uids: 5");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(ControlNoted(stage_, "0:0;taken=operator_uids;not=services[second];uid=5"))
      << batond.standard_error();
}

// A keeper that is stopped takes the configuration too late, after batond has told that it did not.
TEST_F(BatondTest, AsksAKeeperAgainThatHasNotAnsweredThoughNothingDiffers) {
  WriteConfig(stage_, kSecond);
  BatondProcess batond(stage_, ReadingConfig(stage_, "reload"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(ControlNoted(stage_, "7:0"));
  std::set<pid_t> keepers;
  for (const Life& life : stage_.lives("keeper")) keepers.insert(life.pid);
  ASSERT_EQ(keepers.size(), 2u);
  for (const pid_t keeper : keepers) kill(keeper, SIGSTOP);
  WriteConfig(stage_, std::string(kSecondListens) + " distrust_contained_root: true");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(batond.Tells("not taken: services[kv]: its keeper goes on as it is"))
      << batond.standard_error();
  EXPECT_TRUE(batond.Tells("not taken: services[second]: its keeper goes on as it is"));
  for (const pid_t keeper : keepers) kill(keeper, SIGCONT);
  EXPECT_TRUE(Eventually([&] { return stage_.lives("late").size() == 2; }));
  EXPECT_TRUE(stage_.lives("taken").empty());
  WriteConfig(stage_, std::string(kSecond) + " distrust_contained_root: true");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(ControlNoted(stage_, "0:0")) << batond.standard_error();
  ASSERT_EQ(stage_.lives("taken").size(), 2u);
  for (const Life& life : stage_.lives("taken")) EXPECT_EQ(life.note, "0");
  // They have answered now.
  WriteConfig(stage_, std::string(kSecond) + " distrust_contained_root: true operator_uids: 5");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(ControlNoted(stage_, "0:0;taken=operator_uids;uid=5")) << batond.standard_error();
  EXPECT_EQ(stage_.lives("taken").size(), 2u);
}

TEST_F(BatondTest, ChangesNothingWhenItIsOnlyAsked) {
  WriteConfig(stage_, kSecond);
  BatondProcess batond(stage_, ReadingConfig(stage_, "validate"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  WriteConfig(stage_, kSecondListens);
  kill(stage_.lives("control").front().pid, SIGKILL);
  EXPECT_TRUE(ControlNoted(stage_, "7:0;taken=services[second].listeners"))
      << batond.standard_error();
  EXPECT_TRUE(stage_.lives("taken").empty());
  batond.Signal(SIGHUP);  // it is new to batond still
  EXPECT_TRUE(ControlNoted(stage_, "0:0;taken=services[second].listeners"));
}

TEST_F(BatondTest, TakesNothingOfAConfigurationWithAnErrorInIt) {
  WriteConfig(stage_, "operator_uids: 1");
  BatondProcess batond(stage_, ReadingConfig(stage_, ""));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  WriteConfig(stage_, "operator_uids: 3 shoes: 1");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(batond.Tells("nothing is taken: " + stage_.path() + "/conf:1:"))
      << batond.standard_error();
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
}

TEST_F(BatondTest, HasNothingToReadAgainWithoutAConfiguration) {
  BatondProcess batond(stage_, WithEnvironment("FAKE_CONTROL", "reload"));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_TRUE(ControlNoted(stage_, "7:9"));  // kFailedPrecondition
  batond.Signal(SIGHUP);
  EXPECT_EQ(batond.Wait(), 128 + SIGHUP);
}

// A user that became an operator by the reload has to reach the sockets.
TEST_F(BatondTest, LetsOthersPassOnceItsConfigurationNamesAny) {
  WriteConfig(stage_, "");
  BatondProcess batond(stage_, ReadingConfig(stage_, ""));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  WriteConfig(stage_, "viewer_uids: 3");
  batond.Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] {
    struct stat info = {};
    return stat(stage_.state_dir().c_str(), &info) == 0 && (info.st_mode & 07777) == 0711;
  })) << batond.standard_error();
}

TEST_F(BatondTest, OpensForControlOnlyWhatTheOperatorEndpointNames) {
  std::ofstream(stage_.path() + "/key") << "the-key";
  std::ofstream(stage_.path() + "/other") << "another";
  WriteConfig(stage_, "operator_endpoint { address: \"127.0.0.1:0\" certificate_file: \"" +
                          stage_.path() + "/none\" key_file: \"" + stage_.path() +
                          "/key\" client_ca_file: \"" + stage_.path() + "/key\" viewers: \"x\" }");
  BatondProcess::Options options = ReadingConfig(stage_, "open");
  options.environment["FAKE_OPEN"] = stage_.path() + "/key " + stage_.path() + "/other " +
                                     stage_.path() + "/none " + stage_.path() + "/./key" +
                                     " program:baton-nic program:../key";
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  ASSERT_TRUE(Eventually([&] { return stage_.lives("control").size() == 7; }));
  std::vector<std::string> notes;
  for (const Life& life : stage_.lives("control")) notes.push_back(life.note);
  EXPECT_THAT(notes, testing::ElementsAre("started", "0:1:the-key",
                                          "7:0:", "5:0:", "7:0:", "7:0:", "7:0:"));
}

}  // namespace
}  // namespace baton
