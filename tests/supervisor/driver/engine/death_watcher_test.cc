#include "supervisor/driver/engine/death_watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "worker/thread_lock.h"

namespace baton::driver_process {
namespace {

using harness::WaitUntil;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// A process that holds some locks of a slot. Forked before any thread of the test exists.
class LockHolder {
 public:
  LockHolder(const arena::Arena& arena, uint32_t slot, int locks) {
    int told[2], asked[2];
    EXPECT_EQ(pipe(told), 0);
    EXPECT_EQ(pipe(asked), 0);
    pid_ = fork();
    if (pid_ == 0) {
      Hold(arena, slot, locks, told[1], asked[0]);
      _exit(0);
    }
    close(told[1]);
    close(asked[0]);
    told_.Reset(told[0]);
    asked_.Reset(asked[1]);
    Await();
  }
  ~LockHolder() {
    Kill();
    Reap();
  }

  void Kill() { kill(pid_, SIGKILL); }
  void Reap() {
    if (std::exchange(reaped_, true)) return;
    waitpid(pid_, nullptr, 0);
  }
  // Gives its locks back, without ending.
  void Unlock() {
    EXPECT_EQ(write(asked_.get(), "u", 1), 1);
    Await();
  }
  bool IsZombie() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) == 0;
  }

 private:
  static void Hold(const arena::Arena& arena, uint32_t slot, int count, int tell, int ask) {
    std::vector<std::unique_ptr<ThreadLock>> locks;
    for (int i = 0; i < count; ++i) {
      locks.push_back(std::make_unique<ThreadLock>(&arena.worker(slot).thread_locks[i]));
      if (!locks.back()->Acquire().ok()) _exit(1);
    }
    (void)!write(tell, "x", 1);
    char byte;
    if (read(ask, &byte, 1) != 1) return;
    locks.clear();
    (void)!write(tell, "x", 1);
    while (read(ask, &byte, 1) == 1) {
    }
  }
  void Await() {
    char byte;
    EXPECT_EQ(read(told_.get(), &byte, 1), 1);
  }

  pid_t pid_ = -1;
  bool reaped_ = false;
  FileDescriptor told_, asked_;
};

// A worker's thread in this process, which ends with its lock held.
class Owner {
 public:
  explicit Owner(arena::ThreadLock* place)
      : lock_(place), thread_([this] {
          EXPECT_TRUE(lock_.Acquire().ok());
          locked_.set_value();
          end_.get_future().wait();
        }) {
    locked_.get_future().wait();
  }
  ~Owner() {
    End();
    thread_.join();
  }
  void End() {
    if (!std::exchange(ended_, true)) end_.set_value();
  }

 private:
  ThreadLock lock_;
  bool ended_ = false;
  std::promise<void> locked_, end_;
  std::thread thread_;
};

class DeathWatcherTest : public ::testing::Test {
 protected:
  // After all forks.
  void StartWatching() {
    const auto note = [this](std::vector<std::pair<uint32_t, uint64_t>>* told) {
      return [this, told](uint32_t slot, uint64_t id) {
        const std::lock_guard<std::mutex> lock(mutex_);
        told->emplace_back(slot, id);
      };
    };
    watcher.emplace(&arena, 0, note(&deaths_), note(&marks_));
  }
  std::vector<std::pair<uint32_t, uint64_t>> marks() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return marks_;
  }
  std::vector<std::pair<uint32_t, uint64_t>> deaths() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return deaths_;
  }
  void ExpectDeaths(const std::vector<std::pair<uint32_t, uint64_t>>& expected) {
    EXPECT_EQ(WaitUntil("deaths", [&] { return deaths().size() >= expected.size(); }),
              absl::OkStatus());
    EXPECT_EQ(deaths(), expected);
  }

  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(), "kv").value();

 private:
  std::mutex mutex_;
  std::vector<std::pair<uint32_t, uint64_t>> deaths_, marks_;

 protected:
  std::optional<DeathWatcher> watcher;  // its thread ends first
};

TEST_F(DeathWatcherTest, shouldNoticeADeathThoughNobodyHasReapedTheProcess) {
  LockHolder victim(arena, 2, 1);
  StartWatching();
  watcher->Watch(2, 77);
  victim.Kill();
  ExpectDeaths({{2, 77}});
  EXPECT_TRUE(victim.IsZombie());
}

TEST_F(DeathWatcherTest, shouldNoticeADeathThatCameBeforeItWatched) {
  LockHolder victim(arena, 1, 1);
  victim.Kill();
  victim.Reap();
  StartWatching();
  watcher->Watch(1, 5);
  ExpectDeaths({{1, 5}});
}

TEST_F(DeathWatcherTest, shouldNotTakeACleanUnlockForADeath) {
  LockHolder leaving(arena, 0, 1);
  LockHolder victim(arena, 1, 1);
  StartWatching();
  watcher->Watch(0, 10);
  watcher->Watch(1, 11);
  leaving.Unlock();
  victim.Kill();
  ExpectDeaths({{1, 11}});
  leaving.Kill();
  leaving.Reap();
  watcher->Watch(1, 12);  // the lock is still marked: a look at everything, after the unlock
  ExpectDeaths({{1, 11}, {1, 12}});
}

TEST_F(DeathWatcherTest, shouldTellOnlyWhenEveryThreadOfTheWorkerIsDead) {
  LockHolder victim(arena, 0, 1);
  LockHolder other(arena, 1, 1);
  // A second lock of slot 0, of a thread that lives for now.
  Owner survivor(&arena.worker(0).thread_locks[1]);
  StartWatching();
  watcher->Watch(0, 20);
  watcher->Watch(1, 21);
  victim.Kill();
  victim.Reap();
  other.Kill();
  ExpectDeaths({{1, 21}});
  watcher->Watch(1, 22);  // one more turn of the watcher
  ExpectDeaths({{1, 21}, {1, 22}});
  survivor.End();
  ExpectDeaths({{1, 21}, {1, 22}, {0, 20}});
}

// What their threads write is one memory's.
TEST_F(DeathWatcherTest, shouldTellOfADeathOnlyWhenNoWorkerOfTheProcessHoldsALock) {
  Owner first(&arena.worker(0).thread_locks[0]);
  Owner second(&arena.worker(1).thread_locks[0]);
  LockHolder stranger(arena, 2, 1);
  StartWatching();
  watcher->Watch(0, 70, 700);
  watcher->Watch(1, 71, 700);
  watcher->Watch(2, 72, 701);
  first.End();
  ASSERT_EQ(WaitUntil("the mark", [&] { return marks().size() == 1; }), absl::OkStatus());
  EXPECT_THAT(marks(), ElementsAre(Pair(0, 70)));
  stranger.Kill();
  ExpectDeaths({{2, 72}});
  second.End();
  ExpectDeaths({{2, 72}, {0, 70}, {1, 71}});
  ASSERT_EQ(WaitUntil("marks", [&] { return marks().size() == 3; }), absl::OkStatus());
  EXPECT_THAT(marks(), ElementsAre(Pair(0, 70), Pair(2, 72), Pair(1, 71)));
}

TEST_F(DeathWatcherTest, shouldNotAwaitAWorkerOfTheProcessThatHasLeft) {
  Owner first(&arena.worker(0).thread_locks[0]);
  Owner second(&arena.worker(1).thread_locks[0]);
  StartWatching();
  watcher->Watch(0, 80, 700);
  watcher->Watch(1, 81, 700);
  first.End();
  ASSERT_EQ(WaitUntil("the mark", [&] { return marks().size() == 1; }), absl::OkStatus());
  EXPECT_THAT(deaths(), IsEmpty());
  watcher->Forget(1);
  ExpectDeaths({{0, 80}});
}

TEST_F(DeathWatcherTest, shouldSayNothingOfAWorkerThatItForgot) {
  LockHolder forgotten(arena, 0, 1);
  LockHolder victim(arena, 1, 1);
  StartWatching();
  watcher->Watch(0, 30);
  watcher->Watch(1, 31);
  watcher->Forget(0);
  forgotten.Kill();
  forgotten.Reap();
  victim.Kill();
  ExpectDeaths({{1, 31}});
}

TEST_F(DeathWatcherTest, shouldSayNothingOfAWorkerWithoutLocks) {
  LockHolder victim(arena, 1, 1);
  StartWatching();
  watcher->Watch(0, 40);
  watcher->Watch(1, 41);
  victim.Kill();
  ExpectDeaths({{1, 41}});
}

// In a process of its own, so that the time that this one uses is the watcher's.
TEST_F(DeathWatcherTest, shouldNotBeKeptBusyByAWorkerThatChangesItsLockAllTheTime) {
  LockHolder victim(arena, 1, 1);
  const pid_t culprit = fork();
  if (culprit == 0) {
    std::atomic_ref<uint32_t> word(arena.worker(0).thread_locks[0].futex);
    for (uint32_t i = 0;; ++i) {
      word.store(1 + i % 1000);
      syscall(SYS_futex, &arena.worker(0).thread_locks[0].futex, FUTEX_WAKE, 1, nullptr, nullptr,
              0);
    }
  }
  StartWatching();
  watcher->Watch(0, 60);
  watcher->Watch(1, 61);
  timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  usleep(500'000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                      static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
  EXPECT_LT(used, 0.1);
  victim.Kill();
  ExpectDeaths({{1, 61}});
  kill(culprit, SIGKILL);
  waitpid(culprit, nullptr, 0);
}

// Threads of this process that sleep until a watched word changes.
int SleepingWatchers() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "syscall");
    std::string number;
    file >> number;
    count += number == absl::StrCat(SYS_futex_waitv);
  }
  return count;
}

// The kernel wakes one who waits, and that is the one that has waited longest.
TEST_F(DeathWatcherTest, shouldPassOnADeathThatSomebodyElseWaitsForToo) {
  StartWatching();
  DeathWatcher former(&arena, 0, [](uint32_t, uint64_t) {});
  std::vector<std::pair<uint32_t, uint64_t>> expected;
  for (uint64_t round = 1; round <= 100; ++round) {
    arena.ClearWorker(0);
    Owner owner(&arena.worker(0).thread_locks[0]);
    former.Watch(0, round);
    watcher->Watch(0, round);
    ASSERT_EQ(WaitUntil("sleepers", [] { return SleepingWatchers() == 2; }), absl::OkStatus());
    owner.End();
    if (round > 1) former.Forget(0);  // before it is woken, or after it
    expected.emplace_back(0, round);
    ASSERT_EQ(WaitUntil("deaths", [&] { return deaths().size() == round; }), absl::OkStatus());
    ASSERT_EQ(deaths(), expected);
  }
}

TEST_F(DeathWatcherTest, shouldWatchManyWorkersAtOnce) {
  std::vector<std::unique_ptr<LockHolder>> holders;
  for (uint32_t slot = 0; slot < 4; ++slot) {
    holders.push_back(std::make_unique<LockHolder>(arena, slot, 8));
  }
  StartWatching();
  for (uint32_t slot = 0; slot < 4; ++slot) watcher->Watch(slot, 50 + slot);
  std::vector<std::pair<uint32_t, uint64_t>> expected;
  for (uint32_t slot : {2, 0, 3, 1}) {
    holders[slot]->Kill();
    expected.emplace_back(slot, 50 + slot);
    ExpectDeaths(expected);
  }
}

}  // namespace
}  // namespace baton::driver_process
