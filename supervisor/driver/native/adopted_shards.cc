#include "supervisor/driver/native/adopted_shards.h"

#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/log/log.h"
#include "spdlog/spdlog.h"
#include "supervisor/driver/engine/death_watcher.h"
#include "supervisor/driver/native/native_reports.h"

namespace baton::driver_process {
namespace {

// At least two, and two heartbeats.
uint32_t HangLooks(const v1::ServiceConfig& service) {
  const uint64_t milliseconds =
      std::max<uint64_t>(service.hang_timeout_ms(), 2 * uint64_t{service.heartbeat_ms()});
  return static_cast<uint32_t>(
      std::max<uint64_t>(2, milliseconds * 1'000'000 / AdoptedShards::kLookNs));
}

// For the log. "-1" if it is no more.
std::string PidOf(int pidfd) {
  std::ifstream file(absl::StrCat("/proc/self/fdinfo/", pidfd));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Pid:", 0) == 0) return line.substr(line.find_first_not_of(" \t", 4));
  }
  return "unknown";
}

}  // namespace

AdoptedShards::AdoptedShards(const arena::Arena* arena, std::vector<FileDescriptor> wakes,
                             std::vector<FileDescriptor> processes,
                             const v1::ServiceConfig& service)
    : arena_(arena),
      wakes_(std::move(wakes)),
      outside_effects_(service.outside_effects()),
      kills_hung_(service.policy().on_hang() == v1::ON_HANG_KILL),
      hang_looks_(HangLooks(service)),
      unserved_looks_(arena->shape().shards),
      beats_(arena->shape().workers),
      thread_ended_(arena->shape().workers, false),
      processes_(std::move(processes)) {
  for (uint32_t shard = 0; shard < arena->shape().shards; ++shard) {
    served_epochs_.push_back(arena::LoadAcquire(arena->native_shard(shard).served_epoch));
    const uint64_t owner = arena::LoadRelaxed(arena->shard(shard).owner.owner_worker_id);
    log::Write(
        spdlog::level::info,
        {.kind = "shard_kept", .worker_id = owner, .shard = static_cast<int>(shard)},
        fmt::format("shard {} epoch {}: worker {} goes on", shard, served_epochs_[shard], owner));
  }
}

// Returns the slot that a worker wrote. It may be any number, even one that is no worker's slot.
uint32_t AdoptedShards::OwnerOf(uint32_t shard) const {
  const uint64_t word = arena::LoadAcquire(arena_->shard(shard).owner.ownership);
  return arena::ClaimantOrOwner(arena::OwnershipSlot(word));
}

// A thread of the worker in that slot lives.
bool AdoptedShards::IsAlive(uint32_t slot) const {
  if (slot >= beats_.size()) return false;
  for (const arena::ThreadLock& lock : arena_->worker(slot).thread_locks) {
    const uint32_t word = arena::LoadAcquire(lock.futex);
    if ((word & FUTEX_OWNER_DIED) == 0 && (word & FUTEX_TID_MASK) != 0) return true;
  }
  return false;
}

void AdoptedShards::WakeDriver(uint32_t shard) const {
  const uint32_t slot = OwnerOf(shard);
  if (slot < wakes_.size()) (void)eventfd_write(wakes_[slot].get(), 1);
}

void AdoptedShards::Turn(uint64_t now_ns, const std::function<bool(uint32_t shard)>& is_used) {
  const bool look = looked_ns_ == 0 || now_ns - looked_ns_ >= kLookNs;
  if (look) {
    looked_ns_ = now_ns;
    if (!looked_before_) WakeAll();
    LookAtBeats();
    LookAtLocks();
  }
  for (uint32_t shard = 0; shard < served_epochs_.size(); ++shard) {
    TellMove(shard);
    TellPoisonings(shard);
    NameHeir(shard);
    if (look) LookAtOwner(shard, is_used(shard));
  }
}

// The former driver may have died between what it wrote for a worker and the word that it had.
void AdoptedShards::WakeAll() const {
  for (const FileDescriptor& wake : wakes_) (void)eventfd_write(wake.get(), 1);
}

void AdoptedShards::LookAtBeats() {
  for (uint32_t slot = 0; slot < beats_.size(); ++slot) {
    const uint64_t value = arena::LoadRelaxed(arena_->worker(slot).heartbeat);
    Beat& beat = beats_[slot];
    // Counted from the first look at a worker that lives: before, it may be any old beat.
    const bool silent = value == beat.value && looked_before_ && IsAlive(slot);
    beat = silent ? Beat{value, beat.silent_looks + 1, beat.told} : Beat{value};
  }
  looked_before_ = true;
}

void AdoptedShards::TellMove(uint32_t shard) {
  const arena::NativeShard& change = arena_->native_shard(shard);
  const uint64_t served = arena::LoadAcquire(change.served_epoch);
  if (std::exchange(served_epochs_[shard], served) == served) return;
  const uint64_t owner = arena::LoadRelaxed(arena_->shard(shard).owner.owner_worker_id);
  log::Write(spdlog::level::info,
             {.kind = "shard_moved", .worker_id = owner, .shard = static_cast<int>(shard)},
             fmt::format("shard {} epoch {}: worker {} goes on after {} us", shard, served, owner,
                         arena::LoadRelaxed(change.blackout_ns) / 1000));
}

// Those of owners that ended while there was no driver, too, as far as their reports are still
// there.
void AdoptedShards::TellPoisonings(uint32_t shard) {
  const uint64_t epoch =
      arena::OwnershipEpoch(arena::LoadAcquire(arena_->shard(shard).owner.ownership));
  uint64_t& told = arena_->native_shard(shard).told_epoch;  // or anything
  uint64_t next = arena::LoadRelaxed(told) + 1;
  if (epoch > arena::kNativeReports) next = std::max(next, epoch - arena::kNativeReports);
  for (; next < epoch; ++next) {
    uint64_t version = 0;
    const auto report = ReadNativeReport(*arena_, shard, next, &version);
    if (!report && next + 1 == epoch) break;  // it is being written: at the next turn
    if (report && report->poisoned) {
      log::Write(spdlog::level::warn,
                 {.kind = "connection_poisoned", .shard = static_cast<int>(shard)},
                 DescribePoisoning(shard, *report->poisoned));
    }
    arena::StoreRelaxed(told, next);
  }
}

// Keeps the named heir while it lives, beats and does not own the shard. If all candidates hang,
// the named one stays the heir, because it may come back. No worker is forked any more, so only
// the workers that are left can follow.
void AdoptedShards::NameHeir(uint32_t shard) {
  const uint32_t owner = OwnerOf(shard);
  uint64_t& heir = arena_->native_shard(shard).heir;
  const uint64_t named = arena::LoadRelaxed(heir);  // slot + 1, or anything
  const auto can_follow = [&](uint64_t slot) {
    return slot < wakes_.size() && slot != owner && IsAlive(static_cast<uint32_t>(slot));
  };
  const bool named_can = named != 0 && can_follow(named - 1);
  if (named_can && !IsSilent(static_cast<uint32_t>(named - 1))) return;
  for (uint32_t slot = 0; slot < wakes_.size(); ++slot) {
    if (!can_follow(slot) || (named_can && IsSilent(slot))) continue;
    arena::StoreRelease(heir, uint64_t{slot} + 1);
    (void)eventfd_write(wakes_[slot].get(), 1);  // it looks whether there is something to claim
    return;
  }
}

void AdoptedShards::LookAtOwner(uint32_t shard, bool used) {
  const uint32_t slot = OwnerOf(shard);
  const bool alive = IsAlive(slot);
  const bool hangs = alive && IsSilent(slot);
  if (hangs && !std::exchange(beats_[slot].told, true)) OnHang(slot);
  // A killed owner has the same time again to end.
  const bool served = alive && (!hangs || !kills_hung_);
  unserved_looks_[shard] = served || !used ? 0 : unserved_looks_[shard] + 1;
}

// An heir follows at the mark. Whatever threads of the process are left go on with what is its.
void AdoptedShards::LookAtLocks() {
  for (uint32_t slot = 0; slot < processes_.size(); ++slot) {
    if (thread_ended_[slot] || !DeathWatcher::IsMarked(*arena_, slot)) continue;
    thread_ended_[slot] = true;
    pollfd process = {processes_[slot].get(), POLLIN, 0};
    if (!processes_[slot] || poll(&process, 1, 0) != 0) continue;  // it has none, or that is dead
    Kill(slot, "worker_thread_ended",
         "the thread that attached has ended, and if its process has not, it is killed");
  }
}

void AdoptedShards::OnHang(uint32_t slot) {
  const std::string what = absl::StrCat("it owns shards and has shown no sign of life for ",
                                        hang_looks_ * (kLookNs / 1'000'000), " ms");
  if (kills_hung_) return Kill(slot, "worker_killed", what);
  log::Write(spdlog::level::warn, {.kind = "worker_hangs"},
             fmt::format("the worker in slot {} (pid {}): {}; its shards stay with it, as the "
                         "policy's on_hang says",
                         slot, PidOf(processes_[slot].get()), what));
}

void AdoptedShards::Kill(uint32_t slot, std::string_view kind, std::string_view why) const {
  const std::string pid = PidOf(processes_[slot].get());
  if (syscall(SYS_pidfd_send_signal, processes_[slot].get(), SIGKILL, nullptr, 0) == 0) {
    log::Write(spdlog::level::warn, {.kind = kind},
               fmt::format("the worker in slot {} (pid {}): {}", slot, pid, why));
  } else {
    spdlog::error("the worker in slot {} (pid {}) cannot be killed: {}: {}", slot, pid,
                  strerror(errno), why);
  }
}

std::string AdoptedShards::WhyStuck() const {
  for (uint32_t shard = 0; shard < served_epochs_.size(); ++shard) {
    const uint32_t slot = OwnerOf(shard);
    if (outside_effects_ && slot != arena::kNobody && !IsAlive(slot)) {
      return absl::StrCat("the owner of shard ", shard,
                          " died, and it has outside effects: nobody may follow before a driver "
                          "says that all of it is gone, which this one cannot");
    }
    if (unserved_looks_[shard] < hang_looks_) continue;
    return absl::StrCat("shard ", shard,
                        " has connections and nobody who serves them: its owner hangs and cannot "
                        "be ended, or is gone and nobody follows");
  }
  return "";
}

}  // namespace baton::driver_process
