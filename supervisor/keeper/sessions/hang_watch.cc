#include "supervisor/keeper/sessions/hang_watch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "spdlog/spdlog.h"

namespace baton::keeper {
namespace {

// Returns the number in line "<name>:\t<number>" of a thread's status; -1: there is none.
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
  Search(boost::asio::io_context& loop, uint32_t of_slot, uid_t of_user,
         const std::vector<pid_t>& no_holders, Found then)
      : slot(of_slot), uid(of_user), others(no_holders), found(std::move(then)), pause(loop) {}

  const uint32_t slot;
  const uid_t uid;
  const std::vector<pid_t> others;
  const Found found;
  std::vector<pid_t> looked_at;  // processes, since the last pause: none of them counts
  bool told = false;             // that it has to look again
  boost::asio::steady_timer pause;
};

void LockHolders::Find(uint32_t slot, uid_t uid, const std::vector<pid_t>& others, Found found) {
  LookAtNext(std::make_shared<Search>(loop_, slot, uid, others, std::move(found)));
}

// Reads the locks anew each time, because they may name other processes by now.
std::optional<LockHolder> LockHolders::NextNamed(const Search& search) const {
  for (const arena::ThreadLock& lock : arena_.worker(search.slot).thread_locks) {
    const uint32_t word = arena::LoadAcquire(lock.futex);
    LockHolder named;
    named.thread = static_cast<pid_t>(word & FUTEX_TID_MASK);
    if (named.thread == 0 || (word & FUTEX_OWNER_DIED) != 0) continue;
    named.pid = StatusOf(named.thread, "Tgid");
    if (named.pid <= 0 || named.pid == getpid() ||
        absl::c_linear_search(search.others, named.pid) ||
        absl::c_linear_search(search.looked_at, named.pid)) {
      continue;
    }
    // The pidfd comes first: if the number is another process's when it is looked at, this one is
    // dead and a signal hits nobody.
    named.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, named.pid, 0)));
    if (named.pidfd || errno == EMFILE || errno == ENFILE || errno == ENOMEM) return named;
  }
  return std::nullopt;
}

void LockHolders::LookAtNext(const std::shared_ptr<Search>& search) {
  std::optional<LockHolder> named = NextNamed(*search);
  if (!named) return search->found(std::nullopt);
  if (!named->pidfd || search->looked_at.size() >= kMostLooks) return LookAgain(search);
  const auto holder = std::make_shared<LockHolder>(*std::move(named));
  reader_.ReadMaps(holder->thread, arena_.worker_log_fd(),
                   [this, search, holder](const absl::StatusOr<bool>& maps_arena) {
                     OnLooked(search, std::move(*holder), maps_arena);
                   });
}

void LockHolders::OnLooked(const std::shared_ptr<Search>& search, LockHolder named,
                           const absl::StatusOr<bool>& maps_arena) {
  if (!maps_arena.ok() && !absl::IsPermissionDenied(maps_arena.status())) {
    if (!std::exchange(search->told, true)) {
      spdlog::warn(
          "whether process {} holds a lock of the dead worker in slot {} cannot be seen, and its "
          "shards wait: {}",
          named.pid, search->slot, MessageOf(maps_arena.status()));
    }
    return LookAgain(search);
  }
  const bool counts = maps_arena.ok()
                          ? *maps_arena
                          : search->uid != geteuid() &&
                                StatusOf(named.thread, "Uid") == static_cast<pid_t>(search->uid);
  if (counts) return search->found(std::move(named));
  search->looked_at.push_back(named.pid);
  LookAtNext(search);
}

void LockHolders::LookAgain(const std::shared_ptr<Search>& search) {
  search->looked_at.clear();
  After(search->pause, kPause, [this, search, alive = std::weak_ptr(alive_)] {
    if (alive.lock()) LookAtNext(search);
  });
}

using Change = internal::ChangeWorker;

// Limits how late a hang is noticed.
constexpr uint32_t kMostBetweenLooksMs = 100;

uint32_t LooksUntilHung(uint32_t heartbeat_ms, uint32_t hang_timeout_ms,
                        uint32_t between_looks_ms) {
  const uint32_t silence_ms = std::max(2 * heartbeat_ms, hang_timeout_ms);
  return (silence_ms - 1) / between_looks_ms + 1;
}

HangWatch::HangWatch(const SessionParts& parts, Kill kill)
    : parts_(parts),
      heartbeat_ms_(std::max(1u, parts.config.service().heartbeat_ms())),
      between_looks_ms_(std::min(heartbeat_ms_, kMostBetweenLooksMs)),
      timer_(parts.loop),
      kill_(std::move(kill)) {
  Every(timer_, std::chrono::milliseconds(between_looks_ms_), [this] {
    for (const auto& session : parts_.places.slots()) {
      if (session) LookAt(*session);
    }
    shards_.reset();
  });
}

void HangWatch::LookAt(WorkerSession& session) {
  if (session.IsProcessDead()) return;  // a dead worker does not hang, even if its lock is held
  const bool was_silent = session.heartbeat.IsSilent(looks());
  session.heartbeat.Look(arena::LoadRelaxed(parts_.driver.arena().worker(session.slot).heartbeat),
                         looks());
  const bool silent = session.heartbeat.IsSilent(looks());
  if (session.state != v1::WORKER_STATE_READY || !(silent || was_silent)) return;
  if (silent != was_silent) {
    parts_.driver.ChangeWorker(session.slot, session.id,
                               silent ? Change::STALLED : Change::NOT_STALLED);
  }
  if (!silent || !OwnsShards(session.id)) {
    session.hangs = false;
    session.silent_owner_looks = 0;
    return;
  }
  // A worker that was silent before it got shards has the full time, too.
  if (!was_silent || ++session.silent_owner_looks >= looks()) OnHang(session);
}

uint32_t HangWatch::looks() const {
  return LooksUntilHung(heartbeat_ms_, parts_.config.service().hang_timeout_ms(),
                        between_looks_ms_);
}

bool HangWatch::OwnsShards(uint64_t worker_id) {
  if (!shards_) shards_ = parts_.driver.LookAtShards();
  return absl::c_any_of(shards_->shards(),
                        [&](const auto& shard) { return shard.owner_worker_id() == worker_id; });
}

// Called again and again while the worker hangs, because the policy may change meanwhile.
void HangWatch::OnHang(WorkerSession& session) {
  const std::string what = absl::StrCat("it owns shards and has shown no sign of life for ",
                                        looks() * between_looks_ms_, " ms");
  const bool known = std::exchange(session.hangs, true);
  if (parts_.policies.policy().on_hang() == v1::ON_HANG_REPORT) {
    if (known) return;
    parts_.events.Add("worker_hangs",
                      absl::StrCat("worker ", session.id, " (pid ", session.peer.pid, ") hangs: ",
                                   what, "; its shards stay with it, as the policy's on_hang says"),
                      session.id);
    return;
  }
  parts_.driver.ChangeWorker(session.slot, session.id, Change::DEATH_BY_HANG);
  kill_(session.id, what);
}

}  // namespace baton::keeper
