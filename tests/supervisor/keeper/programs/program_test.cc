#include "supervisor/keeper/programs/program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/driver/workers/spawn_plan.h"
#include "supervisor/keeper/programs/program_output.h"
#include "tests/harness/binaries.h"
#include "tests/harness/network_namespace.h"
#include "tests/harness/temp_directory.h"

namespace baton::keeper {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

constexpr uint32_t kNobody = 65534;  // uid and gid, on Debian
constexpr int kEndTimeoutMs = 20'000;

class ProgramTest : public ::testing::Test {
 protected:
  // Ends with status 0 when `condition`, for sh, holds.
  internal::Program Testing(const std::string& condition) const {
    internal::Program program;
    program.set_path("/bin/sh");
    program.add_arguments("-c");
    program.add_arguments(condition);
    program.set_directory(directory_.path());
    program.set_uid(geteuid());
    program.set_gid(getegid());
    return program;
  }

  absl::StatusOr<StartedProgram> Start(const internal::Program& program, int network = -1) const {
    auto started = StartProgram(program, launcher_, network);
    if (started.ok()) EnterProgram(started->entered.get());
    return started;
  }

  // How it ended.
  std::string Run(const internal::Program& program, int network = -1) const {
    const auto started = Start(program, network);
    if (!started.ok()) return std::string(started.status().message());
    pollfd end = {started->pidfd.get(), POLLIN, 0};
    if (poll(&end, 1, kEndTimeoutMs) != 1) return "did not end";
    const absl::Status entered = ReadEntered(started->entered.get());
    const std::string how = driver_process::ReapProgram(started->pidfd.get());
    return entered.ok() ? how : std::string(entered.message());
  }

  // Reads what process `pid` runs.
  absl::StatusOr<internal::Program> Read(pid_t pid) const {
    const auto reading = StartReading(pid, launcher_);
    if (!reading.ok()) return reading.status();
    pollfd end = {reading->pidfd.get(), POLLIN, 0};
    if (poll(&end, 1, kEndTimeoutMs) != 1) return absl::DeadlineExceededError("did not end");
    driver_process::ReapProgram(reading->pidfd.get());
    return TakeReading(*reading, geteuid(), getegid());
  }

  const std::string launcher_ = harness::Binaries().Find("baton-launch").value();
  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
};

TEST_F(ProgramTest, shouldGiveArgumentsEnvironmentAndDirectory) {
  internal::Program program = Testing(
      "test \"$MARK\" = yes -a \"$1\" = 'a b' -a -z \"$HOME\" -a "
      "\"$PWD\" = " +
      directory_.path());
  program.add_arguments("sh");
  program.add_arguments("a b");
  program.add_environment("MARK=yes");
  EXPECT_EQ(Run(program), "ended with status 0");
}

// batond's standard output is for whoever started that, and may be a pipe that nobody reads.
TEST_F(ProgramTest, shouldPrintWhereItsErrorsGo) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor reader(ends[0]), writer(ends[1]);
  const FileDescriptor output(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
  ASSERT_EQ(dup2(writer.get(), STDOUT_FILENO), STDOUT_FILENO);
  const std::string end =
      Run(Testing("test $(readlink /proc/$$/fd/1) = $(readlink /proc/$$/fd/2)"));
  ASSERT_EQ(dup2(output.get(), STDOUT_FILENO), STDOUT_FILENO);
  EXPECT_EQ(end, "ended with status 0");
}

// What is done to it is done to nobody's log: not a shutdown, not O_NONBLOCK, not lines that look
// like those of others.
TEST_F(ProgramTest, shouldPrintIntoAPipeOfItsOwn) {
  const std::string ours = std::filesystem::read_symlink("/proc/self/fd/2");
  const auto started = Start(Testing("echo 'to whom'; echo 'it concerns' >&2; test '" + ours +
                                     "' != $(readlink /proc/$$/fd/2)"));
  ASSERT_TRUE(started.ok()) << started.status();
  pollfd end = {started->pidfd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&end, 1, kEndTimeoutMs), 1);
  EXPECT_EQ(driver_process::ReapProgram(started->pidfd.get()), "ended with status 0");
  char text[64] = {};
  EXPECT_GT(read(started->output.get(), text, sizeof(text) - 1), 0);
  EXPECT_EQ(std::string(text), "to whom\nit concerns\n");
}

// Its output ends with its keeper.
TEST_F(ProgramTest, shouldNotEndWhenNobodyReadsWhatItPrints) {
  EXPECT_EQ(Run(Testing("kill -PIPE $$; exit 3")), "ended with status 3");
}

// A program that is stopped when its keeper and driver end gets no SIGHUP from the kernel then.
TEST_F(ProgramTest, shouldLeadASessionOfItsOwn) {
  EXPECT_EQ(Run(Testing("read -r _ _ _ _ _ session _ </proc/$$/stat; test $session = $$")),
            "ended with status 0");
}

// A program has none of the keeper's descriptors except the one that its errors go to.
TEST_F(ProgramTest, shouldInheritItsStandardStreamsAlone) {
  const FileDescriptor inheritable(open("/dev/null", O_RDWR));  // not closed by exec
  ASSERT_TRUE(inheritable);
  std::filesystem::create_directory(directory_.File("fds"));
  EXPECT_EQ(Run(Testing("for f in /proc/$$/fd/*; do test ! -e $f || touch fds/${f##*/}; done")),
            "ended with status 0");
  std::set<std::string> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.File("fds"))) {
    descriptors.insert(entry.path().filename());
  }
  EXPECT_EQ(descriptors, (std::set<std::string>{"0", "1", "2"}));
}

TEST_F(ProgramTest, shouldTellHowItEnded) {
  EXPECT_EQ(Run(Testing("exit 7")), "ended with status 7");
  EXPECT_THAT(Run(Testing("kill -9 $$")), HasSubstr("killed by signal 9"));
  const auto runs = Start(Testing("sleep 60"));
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_EQ(driver_process::ReapProgram(runs->pidfd.get()), "");
  ASSERT_EQ(kill(runs->pid, SIGKILL), 0);
}

TEST_F(ProgramTest, shouldSayWhyItCannotBeStarted) {
  internal::Program program = Testing("true");
  for (const auto& [path, why] :
       {std::pair("/nowhere/program", "exec: /nowhere/program: No such file"),
        std::pair("/tmp", "exec: /tmp is not a file"),
        std::pair("/etc/passwd", "exec: /etc/passwd is not an executable")}) {
    program.set_path(path);
    EXPECT_THAT(Run(program), HasSubstr(why));
  }
  program = Testing("true");
  program.set_directory("/nowhere");
  EXPECT_THAT(Run(program), HasSubstr("cannot change to directory /nowhere"));
  EXPECT_THAT(std::string(StartProgram(program, "/nowhere/launch").status().message()),
              HasSubstr("cannot run /nowhere/launch"));
}

// A file system, or a database of users, that does not answer.
TEST_F(ProgramTest, shouldWaitForNothingThatKeepsAProgramFromBeingEntered) {
  const std::string fifo = directory_.File("fifo"), launcher = directory_.File("launcher");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::ofstream(launcher) << "#!/bin/sh\nread word <" << fifo << "\nexec " << launcher_ << "\n";
  std::filesystem::permissions(launcher, std::filesystem::perms::all);
  const auto started = StartProgram(Testing("exit 5"), launcher);
  ASSERT_TRUE(started.ok()) << started.status();
  EnterProgram(started->entered.get());
  std::ofstream(fifo) << "go\n";
  pollfd end = {started->pidfd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&end, 1, kEndTimeoutMs), 1);
  EXPECT_EQ(ReadEntered(started->entered.get()), absl::OkStatus());
  EXPECT_EQ(driver_process::ReapProgram(started->pidfd.get()), "ended with status 5");
}

// Nobody would know the process of a keeper that died before the driver held it.
TEST_F(ProgramTest, shouldNotEnterTheProgramOfAStarterThatHasDied) {
  auto started = StartProgram(Testing("exit 5"), launcher_);
  ASSERT_TRUE(started.ok()) << started.status();
  started->entered.Reset();
  pollfd end = {started->pidfd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&end, 1, kEndTimeoutMs), 1);
  EXPECT_EQ(driver_process::ReapProgram(started->pidfd.get()), "ended with status 127");
}

TEST_F(ProgramTest, shouldTakeOnTheUserOfTheWorker) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::filesystem::permissions(directory_.path(), std::filesystem::perms::all);
  internal::Program program = Testing(
      "test $(/usr/bin/id -u) = 65534 -a $(/usr/bin/id -g) = 65534 -a $(/usr/bin/id -G) = 65534");
  program.set_uid(kNobody);
  program.set_gid(kNobody);
  EXPECT_EQ(Run(program), "ended with status 0");
}

// The worker chose it, and a loader believes it: what LD_DEBUG_OUTPUT has written is the worker's,
// so LD_PRELOAD would have run as the worker, too.
TEST_F(ProgramTest, shouldHeedTheEnvironmentOnlyAsThatUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::filesystem::permissions(directory_.path(), std::filesystem::perms::all);
  internal::Program program = Testing("true");
  program.set_uid(kNobody);
  program.set_gid(kNobody);
  program.add_environment("LD_DEBUG=files");
  program.add_environment("LD_DEBUG_OUTPUT=" + directory_.File("loaded"));
  EXPECT_EQ(Run(program), "ended with status 0");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    struct stat file = {};
    ASSERT_EQ(stat(entry.path().c_str(), &file), 0);
    EXPECT_EQ(file.st_uid, kNobody) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST_F(ProgramTest, shouldStartInTheNetworkNamespaceThatItIsTold) {
  const auto network = harness::NetworkNamespace::Create();
  if (absl::IsPermissionDenied(network.status())) GTEST_SKIP() << network.status();
  ASSERT_TRUE(network.ok()) << network.status();
  internal::Program program =
      Testing("test $(readlink /proc/self/ns/net) = " + network->Identity());
  EXPECT_EQ(Run(program, network->fd()), "ended with status 0");
  program.set_in_network_namespace(true);
  EXPECT_EQ(Run(program, network->fd()), "ended with status 1");
  EXPECT_EQ(Run(Testing("! test -e /proc/self/fd/4"), network->fd()), "ended with status 0");
}

TEST_F(ProgramTest, shouldReadWhetherAProgramIsInOurNetworkNamespace) {
  EXPECT_TRUE(Read(getpid())->in_network_namespace());
  const auto network = harness::NetworkNamespace::Create();
  if (absl::IsPermissionDenied(network.status())) GTEST_SKIP() << network.status();
  ASSERT_TRUE(network.ok()) << network.status();
  const harness::NetworkNamespace::Stay stay(*network);
  // This process has entered that namespace, and its parent has not.
  EXPECT_FALSE(Read(getppid())->in_network_namespace());
}

TEST_F(ProgramTest, shouldReadARunningProgram) {
  const auto program = Read(getpid());
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->path(), std::filesystem::read_symlink("/proc/self/exe").string());
  EXPECT_EQ(program->directory(), std::filesystem::current_path().string());
  const std::string path = std::string("PATH=") + getenv("PATH");
  EXPECT_THAT(program->environment(), Contains(path));
  EXPECT_EQ(Read(0x7fffffff).status().code(), absl::StatusCode::kFailedPrecondition);
}

// The memory that the process has its command line in does not come.
TEST_F(ProgramTest, shouldGiveUpReadingWhatDoesNotCome) {
  const std::string launcher = directory_.File("launcher");
  std::ofstream(launcher) << "#!/bin/sh\nexec sleep 600\n";
  std::filesystem::permissions(launcher, std::filesystem::perms::all);
  boost::asio::io_context loop;
  ProgramReader reader(loop, launcher, std::chrono::milliseconds(1));
  std::vector<absl::StatusCode> told;
  const auto read = [&] {
    reader.Read(getpid(), 0, 0, [&](const absl::StatusOr<internal::Program>& program) {
      told.push_back(program.status().code());
    });
  };
  for (int i = 0; i < ProgramReader::kMostAtOnce + 1; ++i) read();
  loop.run();  // until they were reaped, too
  std::vector<absl::StatusCode> expected(ProgramReader::kMostAtOnce,
                                         absl::StatusCode::kDeadlineExceeded);
  expected.push_back(absl::StatusCode::kUnavailable);
  EXPECT_THAT(told, UnorderedElementsAreArray(expected));
  told.clear();
  read();
  loop.restart();
  loop.run();
  EXPECT_THAT(told, ElementsAre(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(ProgramTest, shouldReadInTheLoop) {
  boost::asio::io_context loop;
  ProgramReader reader(loop, launcher_);
  absl::StatusOr<internal::Program> found;
  reader.Read(getpid(), 7, 8,
              [&](absl::StatusOr<internal::Program> program) { found = std::move(program); });
  loop.run();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path(), std::filesystem::read_symlink("/proc/self/exe").string());
  EXPECT_EQ(found->uid(), 7u);
}

TEST_F(ProgramTest, shouldTellWhetherAProcessMapsAFile) {
  const FileDescriptor mapped(memfd_create("mapped", MFD_CLOEXEC));
  const FileDescriptor other(memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(mapped.get(), 4096), 0);
  const auto mapping = arena::Mapping::Map(mapped.get(), 4096, /*writable=*/true, "a file");
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  boost::asio::io_context loop;
  ProgramReader reader(loop, launcher_);
  const auto maps = [&](pid_t pid, const FileDescriptor& file) {
    absl::StatusOr<bool> told;
    reader.ReadMaps(pid, file.get(),
                    [&](absl::StatusOr<bool> answer) { told = std::move(answer); });
    loop.restart();
    loop.run();
    return told;
  };
  EXPECT_THAT(maps(getpid(), mapped), absl::StatusOr<bool>(true));
  EXPECT_THAT(maps(getpid(), other), absl::StatusOr<bool>(false));
  EXPECT_THAT(maps(0x7fffffff, mapped), absl::StatusOr<bool>(false));  // there is none
}

}  // namespace
}  // namespace baton::keeper
