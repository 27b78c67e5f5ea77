#include "supervisor/keeper/lock_holder.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/arena/atomic_access.h"

namespace baton::keeper {
namespace {

// "<name>:\t<number>" of a thread's status; -1: there is none.
pid_t StatusOf(pid_t thread, absl::string_view name) {
  std::ifstream file(absl::StrCat("/proc/", thread, "/status"));
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(":\t "), absl::SkipEmpty());
    pid_t number = -1;
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return -1;
}

}  // namespace

struct LockHolders::Search {
  const uid_t uid;
  std::vector<LockHolder> named;  // that were not looked at yet
  const Found found;
};

void LockHolders::Find(uint32_t slot, uid_t uid, const std::vector<pid_t>& others, Found found) {
  LookAtNext(std::make_shared<Search>(Search{uid, NamedIn(slot, others), std::move(found)}));
}

std::vector<LockHolder> LockHolders::NamedIn(uint32_t slot,
                                             const std::vector<pid_t>& others) const {
  std::vector<LockHolder> named;
  for (const arena::ThreadLock& lock : arena_.worker(slot).thread_locks) {
    const uint32_t word = arena::LoadAcquire(lock.futex);
    const auto thread = static_cast<pid_t>(word & FUTEX_TID_MASK);
    if (thread == 0 || (word & FUTEX_OWNER_DIED) != 0) continue;
    LockHolder holder;
    holder.pid = StatusOf(thread, "Tgid");
    if (holder.pid <= 0 || holder.pid == getpid() ||
        std::find(others.begin(), others.end(), holder.pid) != others.end()) {
      continue;
    }
    // Before it is looked at: if the number is another's by then, this process is dead.
    holder.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, holder.pid, 0)));
    if (holder.pidfd) named.push_back(std::move(holder));
  }
  return named;
}

void LockHolders::LookAtNext(const std::shared_ptr<Search>& search) {
  if (search->named.empty()) return search->found(std::nullopt);
  const pid_t pid = search->named.back().pid;
  reader_.ReadMaps(pid, arena_.worker_log_fd(), [this, search](std::optional<bool> maps_arena) {
    LockHolder holder = std::move(search->named.back());
    search->named.pop_back();
    const bool is_of_service = maps_arena.value_or(
        search->uid != geteuid() && StatusOf(holder.pid, "Uid") == static_cast<pid_t>(search->uid));
    if (!is_of_service) return LookAtNext(search);
    search->found(std::move(holder));
  });
}

}  // namespace baton::keeper
