#include "supervisor/keeper/adopted_shards.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "spdlog/spdlog.h"

namespace baton::keeper {

AdoptedShards::AdoptedShards(const arena::Arena* arena, std::vector<FileDescriptor> wakes,
                             const v1::ServiceConfig& service)
    : arena_(arena),
      wakes_(std::move(wakes)),
      outside_effects_(service.outside_effects()),
      hang_timeout_ns_(uint64_t{service.hang_timeout_ms()} * 1'000'000),
      beats_(arena->shape().workers) {
  for (uint32_t shard = 0; shard < arena->shape().shards; ++shard) {
    served_epochs_.push_back(arena::LoadAcquire(arena->native_shard(shard).served_epoch));
    spdlog::info("shard_kept: shard {} epoch {}: worker {} goes on", shard, served_epochs_[shard],
                 arena::LoadRelaxed(arena->shard(shard).owner.owner_worker_id));
  }
}

uint32_t AdoptedShards::OwnerOf(uint32_t shard) const {
  const uint64_t word = arena::LoadAcquire(arena_->shard(shard).owner.ownership);
  return arena::ClaimantOrOwner(arena::OwnershipSlot(word));
}

// A thread of the worker in that slot that lives; 0: there is none.
uint32_t AdoptedShards::LockHolder(uint32_t slot) const {
  for (const arena::ThreadLock& lock : arena_->worker(slot).thread_locks) {
    const uint32_t word = arena::LoadAcquire(lock.futex);
    if ((word & FUTEX_OWNER_DIED) == 0 && (word & FUTEX_TID_MASK) != 0) {
      return word & FUTEX_TID_MASK;
    }
  }
  return 0;
}

bool AdoptedShards::IsAlive(uint32_t slot) const { return LockHolder(slot) != 0; }

void AdoptedShards::WakeDriver(uint32_t shard) const {
  const uint32_t slot = OwnerOf(shard);
  if (slot < wakes_.size()) (void)eventfd_write(wakes_[slot].get(), 1);
}

void AdoptedShards::Turn(uint64_t now_ns) {
  for (uint32_t shard = 0; shard < served_epochs_.size(); ++shard) {
    TellMove(shard);
    NameHeir(shard);
    LookAtOwner(shard, now_ns);
  }
}

void AdoptedShards::TellMove(uint32_t shard) {
  const arena::NativeShard& change = arena_->native_shard(shard);
  const uint64_t served = arena::LoadAcquire(change.served_epoch);
  if (std::exchange(served_epochs_[shard], served) == served) return;
  spdlog::info("shard_moved: shard {} epoch {}: worker {} goes on after {} us", shard, served,
               arena::LoadRelaxed(arena_->shard(shard).owner.owner_worker_id),
               arena::LoadRelaxed(change.blackout_ns) / 1000);
}

// Who was named before stays it for as long as it lives and has nothing. Nobody else is forked, so
// there are as many successors as there were workers.
void AdoptedShards::NameHeir(uint32_t shard) {
  const uint32_t owner = OwnerOf(shard);
  uint64_t& heir = arena_->native_shard(shard).heir;
  const uint64_t named = arena::LoadRelaxed(heir);
  if (named != 0 && named - 1 != owner && IsAlive(static_cast<uint32_t>(named - 1))) return;
  for (uint32_t slot = 0; slot < wakes_.size(); ++slot) {
    if (slot == owner || !IsAlive(slot)) continue;
    arena::StoreRelease(heir, uint64_t{slot} + 1);
    (void)eventfd_write(wakes_[slot].get(), 1);  // it looks whether there is something to claim
    return;
  }
}

void AdoptedShards::LookAtOwner(uint32_t shard, uint64_t now_ns) {
  const uint32_t slot = OwnerOf(shard);
  if (slot >= beats_.size() || !IsAlive(slot)) return;
  Beat& beat = beats_[slot];
  const uint64_t value = arena::LoadRelaxed(arena_->worker(slot).heartbeat);
  if (beat.since_ns == 0 || value != beat.value) {
    beat = {value, now_ns};
  } else if (now_ns - beat.since_ns >= hang_timeout_ns_) {
    beat.since_ns = now_ns;
    Kill(slot);
  }
}

// The number in a lock is a living thread's as long as the lock has it: so the process that was
// opened by that number is the worker's when the lock still has it afterwards.
void AdoptedShards::Kill(uint32_t slot) const {
  const uint32_t thread = LockHolder(slot);
  if (thread == 0) return;
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, thread, 0)));
  const bool killed = process && LockHolder(slot) == thread &&
                      syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0;
  if (killed) {
    spdlog::info(
        "worker_killed: the worker in slot {} (pid {}): it owns shards and has shown no "
        "sign of life for {} ms",
        slot, thread, hang_timeout_ns_ / 1'000'000);
  } else {
    spdlog::error("the worker in slot {} (thread {}) hangs, and cannot be killed: {}", slot, thread,
                  strerror(errno));
  }
}

std::string AdoptedShards::WhyStuck() const {
  for (uint32_t shard = 0; outside_effects_ && shard < served_epochs_.size(); ++shard) {
    const uint32_t slot = OwnerOf(shard);
    if (slot == arena::kNobody || IsAlive(slot)) continue;
    return absl::StrCat("the owner of shard ", shard,
                        " died, and it has outside effects: nobody may follow before a keeper says "
                        "that all of it is gone, which this one cannot");
  }
  return "";
}

}  // namespace baton::keeper
