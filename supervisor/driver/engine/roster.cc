#include "supervisor/driver/engine/roster.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/closer.h"

namespace baton::driver_process {

void Roster::Add(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                 Standing standing) {
  Remove(slot);
  KeepInLine(wake.get());
  workers_[slot] = Worker{id, std::move(wake), versions, standing};
  uint64_t& stop_requested = arena_->header().stop_requested;
  arena::StoreRelease(stop_requested, stop_requested & ~(uint64_t{1} << slot));
}

void Roster::Remove(uint32_t slot) {
  CloseConnection(std::move(workers_[slot].wake));
  workers_[slot] = Worker{};
}

void Roster::AskToStop(uint32_t slot) {
  arena::DriverMemoryHeader& header = arena_->header();
  arena::StoreRelease(header.stop_requested, header.stop_requested | uint64_t{1} << slot);
  // Several processes of a native service increment this.
  std::atomic_ref<uint64_t>(header.ownership_changes).fetch_add(1, std::memory_order_release);
  Notify(slot);
}

// ---------------------------------------------------------------- the choice

bool Roster::CanServe(const Worker& worker) {
  return worker.id != 0 && worker.ready && !worker.silent && !worker.ended && !worker.retired;
}

bool Roster::ReadsState(const Worker& worker, uint32_t version) {
  return version == 0 || worker.versions.Reads(version);
}

// Compares by standing, then by the number of shards (fewer is better), then by age (newer is
// better).
bool Roster::IsBetter(const Worker& worker, const Worker& than) {
  if (worker.standing != than.standing) return worker.standing > than.standing;
  if (worker.shards != than.shards) return worker.shards < than.shards;
  return worker.id > than.id;
}

uint32_t Roster::Choose(const Vacancy& vacancy) const {
  uint32_t best = arena::kNobody;
  for (uint32_t slot = 0; slot < workers_.size(); ++slot) {
    const Worker& worker = workers_[slot];
    if (slot == vacancy.except_slot || !CanServe(worker) ||
        !ReadsState(worker, vacancy.state_version)) {
      continue;
    }
    if (worker.id == vacancy.promised_id) return slot;
    if (best == arena::kNobody || IsBetter(worker, workers_[best])) best = slot;
  }
  return best;
}

absl::Status Roster::CheckSuccessor(const Worker& worker, uint32_t version) {
  if (!CanServe(worker)) return absl::FailedPreconditionError("the successor is not ready");
  if (ReadsState(worker, version)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", worker.id, " reads state versions ", worker.versions.reads_min, " to ",
      worker.versions.reads_max, ", the shard's owner writes version ", version));
}

std::string Roster::WhyNobody(const Vacancy& vacancy) const {
  if (std::none_of(workers_.begin(), workers_.end(), CanServe)) return "no worker is ready";
  return absl::StrCat("no worker that is ready reads state version ", vacancy.state_version,
                      ", which its last owner writes");
}

// ---------------------------------------------------------------- waking

void Roster::WakeSleepers() {
  any_notified_ = false;
  // Orders what was published before the look at `sleeping`; Worker::ArmEvent has the other half.
  arena::FullFence();
  for (uint32_t slot = 0; slot < workers_.size(); ++slot) {
    Worker& worker = workers_[slot];
    if (!worker.notify) continue;
    worker.notify = false;
    uint32_t& sleeping = arena_->worker(slot).sleeping;
    if (worker.id == 0 || arena::LoadRelaxed(sleeping) == 0) continue;
    arena::StoreRelaxed(sleeping, 0u);
    // A full socket is readable already; a closed one is its worker's problem.
    (void)send(worker.wake.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

size_t Roster::ListenForSignals(pollfd* entries) const {
  size_t count = 0;
  for (const Worker& worker : workers_) {
    if (worker.wake && !worker.deaf) entries[count++] = {worker.wake.get(), POLLIN, 0};
  }
  return count;
}

void Roster::TakeSignals(const pollfd* entries) {
  for (Worker& worker : workers_) {
    if (!worker.wake || worker.deaf) continue;
    const pollfd& entry = *entries++;
    if (entry.revents == 0) continue;
    char signals[256];
    iovec into = {signals, sizeof(signals)};
    msghdr header = {};
    header.msg_iov = &into;
    header.msg_iovlen = 1;
    const ssize_t got = ReceiveBytes(entry.fd, &header);
    // poll(2) would report the end of the socket, or descriptors in it, at once, for ever.
    worker.deaf = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  }
}

}  // namespace baton::driver_process
