#include "lib/base/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>
#include <string>
#include <thread>

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the CPUs that the calling thread may run on.
std::set<uint32_t> Cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::set<uint32_t> cpus;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.insert(cpu);
  }
  return cpus;
}

int MemoryPolicy() {
  int mode = -1;
  EXPECT_EQ(syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0), 0);
  return mode;
}

TEST(ParseCpusTest, ShouldReadWhatLinuxWrites) {
  EXPECT_THAT(*ParseCpus("2-5,8"), ElementsAre(2, 3, 4, 5, 8));
  EXPECT_THAT(*ParseCpus("0"), ElementsAre(0));
  EXPECT_THAT(*ParseCpus("1023"), ElementsAre(1023));
  EXPECT_THAT(*ParseCpus(""), IsEmpty());
}

TEST(ParseCpusTest, ShouldRefuseTheRest) {
  for (const char* const bad : {"a", "-", "1-", "-1", "5-2", "1,,2", "1024", "0-1024", "1-2-3",
                                "99999999999999999999", ","}) {
    EXPECT_FALSE(ParseCpus(bad).ok()) << bad;
  }
}

TEST(ThreadsOnTest, ShouldBindThreadsThatStartMeanwhileAndGiveTheCallerBackWhatItHad) {
  const std::set<uint32_t> before = Cpus();
  const std::set<uint32_t> one = {*before.rbegin()};
  std::set<uint32_t> of_thread;
  {
    const ThreadsOn threads(one, Inherited::kBounds);
    ASSERT_TRUE(threads.status().ok()) << threads.status();
    EXPECT_EQ(Cpus(), one);
    std::thread([&] { of_thread = Cpus(); }).join();
  }
  EXPECT_EQ(of_thread, one);
  EXPECT_EQ(Cpus(), before);
}

TEST(ThreadsOnTest, ShouldChangeNothingWithoutCpusOrWithOnesThatAreNotThere) {
  const std::set<uint32_t> before = Cpus();
  const ThreadsOn anywhere({}, Inherited::kBounds);
  EXPECT_TRUE(anywhere.status().ok());
  EXPECT_EQ(Cpus(), before);
  const ThreadsOn nowhere({1023}, Inherited::kIsReplaced);
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("online"));
  EXPECT_EQ(Cpus(), before);
}

TEST(ThreadsOnTest, ShouldLeaveOutWhatTheProcessWasNotGiven) {
  const std::set<uint32_t> before = Cpus();
  const std::set<uint32_t> one = {*before.begin()};
  const ThreadsOn given(one, Inherited::kBounds);
  ASSERT_TRUE(given.status().ok()) << given.status();
  {
    std::set<uint32_t> more = one;
    more.insert(1022);
    const ThreadsOn threads(more, Inherited::kBounds);
    ASSERT_TRUE(threads.status().ok()) << threads.status();
    EXPECT_EQ(Cpus(), one);
  }
  const ThreadsOn others({1022}, Inherited::kBounds);
  EXPECT_THAT(std::string(others.status().message()), HasSubstr("none of the CPUs"));
  EXPECT_EQ(Cpus(), one);
}

TEST(MemoryOnTest, ShouldPreferANodeAsLongAsItIsThere) {
  ASSERT_EQ(MemoryPolicy(), MPOL_DEFAULT);
  {
    const MemoryOn memory(0);
    ASSERT_TRUE(memory.status().ok()) << memory.status();
    EXPECT_EQ(MemoryPolicy(), MPOL_PREFERRED);
  }
  EXPECT_EQ(MemoryPolicy(), MPOL_DEFAULT);
}

TEST(MemoryOnTest, ShouldChangeNothingWithoutANodeOrWithOneThatIsNotThere) {
  const MemoryOn anywhere(std::nullopt);
  EXPECT_TRUE(anywhere.status().ok());
  for (const uint32_t node : {1023u, 1024u, ~0u}) {
    const MemoryOn nowhere(node);
    EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("NUMA node"));
  }
  EXPECT_EQ(MemoryPolicy(), MPOL_DEFAULT);
}

}  // namespace
}  // namespace baton
