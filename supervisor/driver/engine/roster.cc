#include "supervisor/driver/engine/roster.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"

namespace baton::driver_process {

void Roster::Add(uint32_t slot, uint64_t id, StateVersions versions, Standing standing) {
  workers_[slot] = Worker{id, versions, standing};
  uint64_t& stop_requested = arena_->header().stop_requested;
  arena::StoreRelease(stop_requested, stop_requested & ~(uint64_t{1} << slot));
}

void Roster::AskToStop(uint32_t slot) {
  arena::DriverMemoryHeader& header = arena_->header();
  arena::StoreRelease(header.stop_requested, header.stop_requested | uint64_t{1} << slot);
  // Several processes of a native service increment this.
  std::atomic_ref<uint64_t>(header.ownership_changes).fetch_add(1, std::memory_order_release);
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
  if (worker.id == 0 || worker.ended) return absl::UnavailableError("the successor has ended");
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

}  // namespace baton::driver_process
