#include "lib/verbs/rdma/cm_id.h"

#include <cstring>
#include <utility>
#include <vector>

#include "lib/base/status.h"

namespace baton::verbs::rdma {

absl::Status CmIds::Open() {
  BATON_ASSIGN_OR_RETURN(file_, CmFile::Open());
  BATON_ASSIGN_OR_RETURN(last_, SharedArray<CmEventSlot>::Make(1));
  (*last_)[0].event = kNoEvent;
  return absl::OkStatus();
}

absl::StatusOr<CmId> CmIds::Create(CmEndpoint* endpoint, bool listens) {
  const uint64_t uid = listens ? ++last_uid_ : kConnectionUid;
  BATON_ASSIGN_OR_RETURN(const uint32_t number, file_->Create(uid));
  return CmId(this, number, endpoint, uid);
}

bool CmIds::Deliver(const CmEventSlot& event, CmEvent* out) {
  *out = {};
  if (event.number() == CmEventNumber::kConnectRequest) {
    const auto listener = listeners_.find(event.uid);
    if (listener != listeners_.end()) return listener->second->OnEvent(event, out);
    (void)file_->Destroy(event.id);  // the request of a listener that is no more
    return false;
  }
  // An id has no endpoint if its user has left it, and it could not be destroyed yet.
  const auto endpoint = endpoints_.find(event.id);
  return endpoint != endpoints_.end() && endpoint->second->OnEvent(event, out);
}

bool CmIds::NextEvent(CmEvent* event) {
  while (!waiting_.empty()) {
    const CmEventSlot next = waiting_.front();
    waiting_.pop_front();
    if (Deliver(next, event)) return true;
  }
  CmEventSlot& last = (*last_)[0];
  for (;;) {
    last.event = kNoEvent;
    const absl::StatusOr<bool> there = file_->NextEvent(&last);
    if (!there.ok() || !*there) return false;
    if (Deliver(last, event)) return true;
  }
}

// The kernel gives the id's number again at once. A request may have it by now whose event waits.
void CmIds::ForgetEventsOf(uint32_t number) {
  CmEventSlot& last = (*last_)[0];
  if (last.event != kNoEvent && last.id == number) last.event = kNoEvent;
  std::erase_if(waiting_, [number](const CmEventSlot& event) {
    return event.id == number && event.number() != CmEventNumber::kConnectRequest;
  });
}

// ---------------------------------------------------------------- a follower

// A follower's listeners have other uids than those that the dead process made last.
constexpr uint64_t kUidsOfOneProcess = uint64_t{1} << 32;

absl::Status CmIds::TakeOver() {
  BATON_ASSIGN_OR_RETURN(CmFile file, CmFile::Open());
  former_ = std::exchange(file_, std::move(file));
  last_uid_ += kUidsOfOneProcess;
  waiting_.clear();
  former_last_.reset();
  if ((*last_)[0].event != kNoEvent) former_last_ = (*last_)[0];
  const std::vector<std::pair<const uint32_t, CmEndpoint*>> endpoints(endpoints_.begin(),
                                                                      endpoints_.end());
  for (const auto& [number, endpoint] : endpoints) endpoint->OnFormer();
  return absl::OkStatus();
}

absl::Status CmIds::Adopt(uint32_t number) {
  const absl::Status moved = file_->Migrate(former_->fd(), number).status();
  return moved.ok() ? moved : absl::NotFoundError(moved.message());
}

const CmEventSlot* CmIds::LastOf(uint32_t number) const {
  return former_last_ && former_last_->id == number ? &*former_last_ : nullptr;
}

// The events of requests that nobody had read come with their listener, and their ids do not.
void CmIds::KeepUnread() {
  CmEventSlot event;
  for (;;) {
    const absl::StatusOr<bool> there = file_->NextEvent(&event);
    if (!there.ok() || !*there) return;
    const bool requested = event.number() == CmEventNumber::kConnectRequest;
    // The kernel had filled the dead process's slot, and not forgotten the event yet.
    if (requested && former_last_ && std::memcmp(&event, &*former_last_, sizeof(event)) == 0) {
      continue;
    }
    // The id of a request that came after its listener was moved is in this file already.
    if (requested) (void)Adopt(event.id);
    waiting_.push_back(event);
  }
}

// The dead process may not have handled it. What was handled already changes nothing. A request has
// an endpoint then, or has no id any more.
void CmIds::KeepLast() {
  if (!former_last_) return;
  const bool requested = former_last_->number() == CmEventNumber::kConnectRequest;
  if (requested && (endpoints_.contains(former_last_->id) || !Adopt(former_last_->id).ok())) return;
  waiting_.push_front(*former_last_);
}

void CmIds::TakeRest() {
  std::vector<CmEndpoint*> listeners;
  for (const auto& [uid, listener] : listeners_) listeners.push_back(listener);
  for (CmEndpoint* const listener : listeners) listener->Rejoin();
  KeepLast();
  KeepUnread();
  former_last_.reset();
}

}  // namespace baton::verbs::rdma
