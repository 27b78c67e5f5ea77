#include "supervisor/keeper/sessions/worker_places.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::keeper {
namespace {

// Keys of what is held for the next keeper.
constexpr char kHeldWorkers[] = "lasting/worker/";
constexpr char kHeldLastId[] = "lasting/last_worker_id";
// No worker has this number, which a slot that cannot be used is reserved for.
constexpr uint64_t kNobody = UINT64_MAX;

}  // namespace

SessionPtr WorkerPlaces::Find(uint64_t worker_id) const {
  for (const SessionPtr& session : slots_) {
    if (session && session->id == worker_id) return session;
  }
  return nullptr;
}

absl::StatusOr<SessionPtr> WorkerPlaces::FindAttached(uint64_t worker_id) const {
  if (SessionPtr session = Find(worker_id)) return session;
  return absl::NotFoundError(absl::StrCat("worker ", worker_id, " is not attached"));
}

absl::StatusOr<uint32_t> WorkerPlaces::FreeSlot() const {
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (IsFree(slot)) return slot;
  }
  return absl::ResourceExhaustedError(absl::StrCat("all ", slots_.size(),
                                                   " workers of the service are attached: raise "
                                                   "max_workers"));
}

uint32_t WorkerPlaces::CountFree() const {
  uint32_t count = 0;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) count += IsFree(slot);
  return count;
}

// Holds the number before it is used, so that no later keeper gives it to another worker.
uint64_t WorkerPlaces::NewId() {
  driver_.Hold(kHeldLastId, absl::StrCat(++last_id_));
  return last_id_;
}

absl::StatusOr<internal::WorkerPlace> WorkerPlaces::Reserve() {
  BATON_ASSIGN_OR_RETURN(const uint32_t slot, FreeSlot());
  reserved_[slot] = NewId();
  return PlaceOf(slot, reserved_[slot]);
}

void WorkerPlaces::Reserve(const internal::WorkerPlace& place) {
  reserved_[place.slot()] = place.id();
  last_id_ = std::max(last_id_, place.id());
}

void WorkerPlaces::Free(const internal::WorkerPlace& place) {
  if (reserved_[place.slot()] == place.id()) reserved_[place.slot()] = 0;
}

bool WorkerPlaces::Has(const WorkerSession& session) const {
  if (session.attached) return slots_[session.slot].get() == &session;
  return session.id != 0 && reserved_[session.slot] == session.id;
}

void WorkerPlaces::Put(const SessionPtr& session) {
  last_id_ = std::max(last_id_, session->id);
  slots_[session->slot] = session;
  reserved_[session->slot] = 0;
}

void WorkerPlaces::Leave(const SessionPtr& session) {
  driver_.ChangeWorker(session->slot, session->id, DriverClient::Change::PLACE_LEFT);
  if (session->attached) driver_.Drop(absl::StrCat(kHeldWorkers, session->slot));
  slots_[session->slot] = nullptr;
  reserved_[session->slot] = 0;
  session->process.close();
  tokens_.Forget(session->id);
}

void WorkerPlaces::Hold(WorkerSession& session) {
  driver_.Hold(absl::StrCat(kHeldWorkers, session.slot), session.ToHeld().SerializeAsString(),
               {session.process.native_handle()});
}

void WorkerPlaces::Restore(boost::asio::io_context& loop, DriverClient::HeldByKey& held,
                           const Each& go_on) {
  for (auto& [key, entry] : held) {
    uint64_t last_id = 0;
    if (key == kHeldLastId && absl::SimpleAtoi(entry.value, &last_id)) {
      last_id_ = std::max(last_id_, last_id);
    }
    if (!key.starts_with(kHeldWorkers) || entry.descriptors.size() != 1) continue;
    driver_.DealWithHeld(key, [this, &loop, &go_on, &taken = entry] {
      internal::HeldWorker worker;
      if (!worker.ParseFromString(taken.value) || worker.place().slot() >= slots_.size()) return;
      auto session = std::make_shared<WorkerSession>(loop);
      session->GoOnFrom(worker, std::move(taken.descriptors[0]));
      Put(session);
      go_on(session);
    });
  }
}

void WorkerPlaces::PutSetAside(boost::asio::io_context& loop, DriverClient::HeldByKey& set_aside,
                               const Each& end) {
  for (auto& [key, entry] : set_aside) {
    uint32_t slot = 0;
    if (!key.starts_with(kHeldWorkers) || entry.descriptors.size() != 1 ||
        !absl::SimpleAtoi(key.substr(sizeof(kHeldWorkers) - 1), &slot) || slot >= slots_.size()) {
      continue;
    }
    reserved_[slot] = kNobody;
    (void)driver_.DealWith(absl::StrCat("the end of ", key),
                           [this, &loop, &end, slot, &taken = entry] {
                             internal::HeldWorker worker;
                             if (!worker.ParseFromString(taken.value)) return;
                             auto session = std::make_shared<WorkerSession>(loop);
                             session->id = worker.place().id();
                             session->slot = slot;
                             session->peer.pid = worker.pid();
                             session->peer.uid = worker.uid();
                             session->process.assign(taken.descriptors[0].Release());
                             session->process_certain = worker.process_certain();
                             session->attached = true;
                             Put(session);
                             end(session);
                           });
  }
}

}  // namespace baton::keeper
