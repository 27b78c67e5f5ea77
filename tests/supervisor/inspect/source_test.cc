#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/config/state_files.h"
#include "supervisor/inspect/source.h"
#include "supervisor/inspect/state_decoder.h"
#include "tests/harness/temp_directory.h"
#include "tests/supervisor/inspect/known_arena.h"

namespace baton::inspect {
namespace {

using ::testing::HasSubstr;
using testing::KnownArena;

// A process that has what it has made before it said so. Killed at the end.
class Holder {
 public:
  explicit Holder(const std::function<void()>& make) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const FileDescriptor read_end(ends[0]);
    FileDescriptor write_end(ends[1]);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      make();
      (void)!write(write_end.get(), "x", 1);
      for (;;) pause();
    }
    write_end.Reset();
    char said;
    EXPECT_EQ(read(read_end.get(), &said, 1), 1);
  }
  ~Holder() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }

 private:
  int pid_;
};

// This process is batond: it holds the lock.
class SourceTest : public ::testing::Test {
 protected:
  void BecomeBatond() { lock_ = HoldLock(BatondLockPath(directory_.path())); }
  static FileDescriptor HoldLock(const std::string& path) {
    FileDescriptor lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const std::string pid = std::to_string(getpid());
    EXPECT_EQ(write(lock.get(), pid.data(), pid.size()), static_cast<ssize_t>(pid.size()));
    return lock;
  }
  // For a Holder: becomes the driver of `service`.
  void BecomeDriver(const std::string& service) const {
    (void)HoldLock(KeeperLockPath(directory_.path(), service)).Release();
    new arena::Arena(KnownArena(service));
  }
  absl::StatusOr<ArenaFiles> Find() { return FindArena(directory_.path(), service_); }
  static uint64_t InstanceOf(const ArenaFiles& files) {
    return files.driver_log().Read<arena::DriverMemoryHeader>(0)->created_ns;
  }

  const harness::TempDirectory directory_ = *harness::TempDirectory::Create();
  // No other process on this machine has a service of this name.
  const std::string service_ = "source-test-" + std::to_string(getpid());
  FileDescriptor lock_;
};

TEST_F(SourceTest, shouldFindTheMemoriesOfAProcessByName) {
  const arena::Arena arena = KnownArena(service_);
  const auto files = ArenaOfProcess(getpid(), service_);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->pid, getpid());
  EXPECT_EQ(InstanceOf(*files), arena.header().created_ns);
  EXPECT_EQ(files->worker_log().Read<arena::WorkerMemoryHeader>(0)->magic, arena::kMagic);
  EXPECT_TRUE(files->buffers().exists());
  EXPECT_TRUE(files->recovery().exists());
  for (const Memory* memory :
       {&files->worker_log(), &files->driver_log(), &files->buffers(), &files->recovery()}) {
    EXPECT_EQ(fcntl(memory->fd(), F_GETFL) & O_ACCMODE, O_RDONLY);
  }
}

TEST_F(SourceTest, shouldLeaveNoMappingBehind) {
  const Holder keeper([&] { new arena::Arena(KnownArena(service_)); });
  const auto files = ArenaOfProcess(keeper.pid(), service_);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto view = ArenaView::Open(*files, service_);
  ASSERT_TRUE(view.ok()) << view.status();
  ASSERT_TRUE(Inspect(*view, {.connections = true, .work_requests = true, .state = true}, 0).ok());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find("memfd:baton-"), std::string::npos) << line;
  }
}

TEST_F(SourceTest, shouldTellWhichArenasAProcessHas) {
  const arena::Arena one = KnownArena(service_ + "-a");
  const arena::Arena other = KnownArena(service_ + "-b");
  absl::Status status = ArenaOfProcess(getpid(), "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(service_ + "-a, " + service_ + "-b: name"));
  status = ArenaOfProcess(getpid(), "nvme").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("-b, not of nvme"));
  const Holder nothing([] {});
  EXPECT_EQ(ArenaOfProcess(1 << 22, "").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SourceTest, shouldFindTheDriverByItsLock) {
  const Holder other([&] { new arena::Arena(KnownArena(service_)); });
  const Holder driver([&] { BecomeDriver(service_); });
  EXPECT_EQ(Find()->pid, driver.pid());  // it outlives batond
  BecomeBatond();
  const auto files = Find();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->pid, driver.pid());
}

TEST_F(SourceTest, shouldFindWhoeverHasItWhenBatondIsGone) {
  const Holder worker([&] { new arena::Arena(KnownArena(service_)); });
  // What is found is open in this process as long as it is kept.
  absl::StatusOr<ArenaFiles> files = Find();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->pid, worker.pid());
  files = absl::StatusOr<ArenaFiles>();
  // A pid that is another's by now.
  std::ofstream(BatondLockPath(directory_.path())) << worker.pid();
  EXPECT_EQ(Find()->pid, worker.pid());
  const Holder other([&] { new arena::Arena(KnownArena(service_)); });
  const absl::Status status = Find().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("different arenas"));
}

TEST_F(SourceTest, shouldSayThatThereIsNone) {
  absl::Status status = Find().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no process has an arena"));
  BecomeBatond();
  const Holder driver([&] { BecomeDriver(service_ + "-other"); });
  status = Find().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("; there are drivers of " + service_ + "-other"));
}

TEST_F(SourceTest, shouldSayWhoMayLook) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  const Holder keeper([&] { new arena::Arena(KnownArena(service_)); });
  const Holder other([&] {
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(1);
    const absl::Status status = ArenaOfProcess(keeper.pid(), service_).status();
    if (!absl::IsPermissionDenied(status)) _exit(1);
    if (status.message().find("as root, or as the user") == absl::string_view::npos) _exit(1);
  });
}

using ::testing::HasSubstr;

absl::StatusOr<std::string> Decode(const std::string& script, std::vector<uint8_t> state = {},
                                   std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  v1::StateDecoder decoder;
  decoder.set_program("/bin/sh");
  decoder.add_arguments("-c");
  decoder.add_arguments(script);
  return RunStateDecoder(decoder, "kv", {false, 17, 3, std::move(state)}, timeout);
}

std::string Failure(const std::string& script, std::chrono::milliseconds timeout) {
  const auto text = Decode(script, {}, timeout);
  EXPECT_FALSE(text.ok()) << *text;
  return std::string(text.status().message());
}

constexpr std::chrono::seconds kPatience{20};

TEST(StateDecoderTest, shouldBeGivenTheStateAndWhatItIs) {
  const auto text = Decode("od -An -tx1; env | grep '^BATON_' | sort", {1, 2, 255});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            " 01 02 ff\nBATON_SERVICE=kv\nBATON_STATE_INDEX=17\nBATON_STATE_KIND=connection\n"
            "BATON_STATE_LENGTH=3\nBATON_STATE_VERSION=3\n");
}

TEST(StateDecoderTest, shouldNotHaveToReadItsInput) {
  const auto text = Decode("echo done", std::vector<uint8_t>(1 << 20, 'x'));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "done\n");
}

TEST(StateDecoderTest, shouldShowNothingThatATerminalWouldTakeForMore) {
  EXPECT_EQ(*Decode("printf 'a\\033[2Jb\\tc\\n\\377'"), "a?[2Jb\tc\n?");
}

TEST(StateDecoderTest, shouldSayHowItFailed) {
  EXPECT_EQ(Failure("echo no account >&2; exit 3", kPatience),
            "/bin/sh has ended with status 3: no account ");
  EXPECT_EQ(Failure("kill -9 $$", kPatience), "/bin/sh was killed by signal 9");
  v1::StateDecoder missing;
  missing.set_program("/no/such/program");
  const auto none = RunStateDecoder(missing, "kv", {true, 0, 1, {}});
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("cannot run /no/such/program: No such file"));
}

TEST(StateDecoderTest, shouldBeBoundedInTimeAndOutput) {
  EXPECT_EQ(Failure("exec sleep 1000", std::chrono::milliseconds(30)),
            "/bin/sh did not end within 30 ms");
  // Also one that has closed its streams, and one whose child holds them.
  EXPECT_EQ(Failure("exec >&- 2>&-; exec sleep 1000", std::chrono::milliseconds(30)),
            "/bin/sh did not end within 30 ms");
  EXPECT_EQ(Failure("sleep 1000 & exit 0", std::chrono::milliseconds(30)),
            "/bin/sh did not end within 30 ms");
  EXPECT_EQ(Failure("yes", kPatience), "/bin/sh prints more than 64 KiB");
  EXPECT_THAT(Failure("yes >&2", std::chrono::milliseconds(200)), HasSubstr("y y y"));
}

TEST(StateDecoderTest, shouldTakeAsMuchAsItMay) {
  const auto text = Decode("head -c 65535 /dev/zero | tr '\\0' x");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 65535u);
}

}  // namespace
}  // namespace baton::inspect
