#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/native/mappings.h"
#include "tests/lib/native/unmapper_of.h"

namespace baton::native {
namespace {

constexpr size_t kPages = 512;

long FaultsOfThisProcess() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// 1: of a child's writes to pages that it has in common with its parent, private or shared, many
// fault. -1: the kernel cannot do it.
int FaultsOfChild(bool prefaults) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const int kind : {MAP_PRIVATE, MAP_SHARED}) {
    auto* const memory = static_cast<uint8_t*>(
        mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(memory, MAP_FAILED);
    madvise(memory, kPages * page, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < kPages; ++i) memory[i * page] = 1;
    if (madvise(memory, page, MADV_POPULATE_WRITE) != 0 && errno == EINVAL) return -1;
    const pid_t child = fork();
    if (child == 0) {
      if (prefaults) Prefault();
      const long before = FaultsOfThisProcess();
      for (size_t i = 0; i < kPages; ++i) memory[i * page] = 2;
      // A few are the test's own.
      _exit(FaultsOfThisProcess() - before < static_cast<long>(kPages / 2) ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    munmap(memory, kPages * page);
    if (status != 0) return 1;
  }
  return 0;
}

TEST(PrefaultTest, shouldLeaveNoPageFaultToAForkedProcess) {
  const int faults = FaultsOfChild(/*prefaults=*/true);
  if (faults < 0) GTEST_SKIP() << "the kernel, older than 5.14, does not fill page tables";
  EXPECT_EQ(faults, 0);
}

// Nobody has asked for the memory of what was only reserved.
TEST(PrefaultTest, shouldNotFillWhatIsReserved) {
  constexpr size_t kReserved = (size_t{1} << 30) + (size_t{1} << 20);
  void* const memory = mmap(nullptr, kReserved, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const pid_t child = fork();
  if (child == 0) {
    Prefault();
    unsigned char resident = 0xff;
    _exit(mincore(memory, 1, &resident) == 0 && (resident & 1) == 0 ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  munmap(memory, kReserved);
}

// The negative control.
TEST(PrefaultTest, shouldFindPageFaultsWithoutIt) {
  const int faults = FaultsOfChild(/*prefaults=*/false);
  if (faults < 0) GTEST_SKIP() << "the kernel, older than 5.14, does not fill page tables";
  EXPECT_EQ(faults, 1);
}

constexpr size_t kBytes = size_t{256} << 20;  // a thousand pieces, untouched

// A child of ours tells this of itself.
struct Told {
  bool started = false;
  bool waits_for_nobody = false;  // wait(2) knows no child of it
};

// A process with a shared mapping and an unmapper, which becomes our child when the process ends.
class UnmapperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    open_ = ends[0];
    process_ = fork();
    if (process_ == 0) Live(ends[1]);
    close(ends[1]);
    Told told;
    ASSERT_EQ(read(open_, &told, sizeof(told)), static_cast<ssize_t>(sizeof(told)));
    if (!told.started) GTEST_SKIP() << "no unmapper beside a sanitizer's own memory";
    EXPECT_TRUE(told.waits_for_nobody);
    unmapper_ = UnmapperOf(process_);
    ASSERT_GT(unmapper_, 0);
  }
  void TearDown() override {
    for (const pid_t pid : {process_, unmapper_}) {
      if (pid > 0) kill(pid, SIGKILL);
    }
    while (waitpid(-1, nullptr, 0) > 0) {
    }
    close(open_);
  }

  void End() {
    ASSERT_EQ(kill(process_, SIGKILL), 0);
    ASSERT_EQ(waitpid(process_, nullptr, 0), process_);
    process_ = -1;
  }
  // Returns the bytes of its mappings that are ours.
  uint64_t Mapped() const {
    std::ifstream maps(absl::StrCat("/proc/", unmapper_, "/maps"));
    uint64_t bytes = 0;
    for (std::string line; std::getline(maps, line);) {
      uint64_t begin = 0, end = 0;
      if (line.find("memfd:of-the-test") == std::string::npos) continue;
      if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) == 2)
        bytes += end - begin;
    }
    return bytes;
  }

  pid_t process_ = -1;
  pid_t unmapper_ = -1;
  int open_ = -1;  // its other end is the process's

 private:
  [[noreturn]] static void Live(int other_end) {
    const int file = memfd_create("of-the-test", MFD_CLOEXEC);
    if (ftruncate(file, kBytes) != 0 ||
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED) {
      _exit(1);
    }
    Told told;
    told.started = StartUnmapper(-1).ok();
    told.waits_for_nobody = waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
    if (write(other_end, &told, sizeof(told)) != sizeof(told)) _exit(1);
    for (;;) pause();
  }
};

TEST_F(UnmapperTest, shouldUnmapPieceByPieceWhenItsProcessHasEnded) {
  EXPECT_EQ(Mapped(), kBytes);
  kill(unmapper_, SIGSTOP);
  End();
  EXPECT_EQ(Mapped(), kBytes);
  uint64_t mapped = kBytes;
  bool part = false;
  int status = 0;
  while (waitpid(unmapper_, &status, WNOHANG) == 0) {
    kill(unmapper_, SIGCONT);
    sched_yield();
    if (!part) kill(unmapper_, SIGSTOP);
    const uint64_t now = Mapped();
    EXPECT_LE(now, mapped);
    mapped = now;
    part |= now > 0 && now < kBytes;
  }
  unmapper_ = -1;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(part);
}

// The other ends of the process's descriptors read as closed: the keeper sees its session's end.
TEST_F(UnmapperTest, shouldHoldNoDescriptorOfItsProcess) {
  kill(unmapper_, SIGSTOP);
  End();
  char byte;
  EXPECT_EQ(read(open_, &byte, 1), 0);
}

TEST_F(UnmapperTest, shouldBearSignals) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGSTOP, SIGCONT}) {
    kill(unmapper_, signal);
  }
  EXPECT_EQ(Mapped(), kBytes);
  End();
  int status = 0;
  EXPECT_EQ(waitpid(unmapper_, &status, 0), unmapper_);
  unmapper_ = -1;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace baton::native
