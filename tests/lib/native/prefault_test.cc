#include "lib/native/prefault.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace baton::native
