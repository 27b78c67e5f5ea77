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
  if (std::exchange(former_last_waits_, false) && Deliver(*former_last_, event)) return true;
  CmEventSlot& last = (*last_)[0];
  for (;;) {
    last.event = kNoEvent;
    const absl::StatusOr<bool> there = file_->NextEvent(&last);
    if (!there.ok()) return false;
    if (!*there) {
      if (std::exchange(may_have_unread_, false) && closes_former_) ForgetFormer();
      return false;
    }
    if (IsFormerLast(last)) continue;
    // The events of requests that nobody had read come with their listener, and their ids do not.
    if (!former_.empty() && last.number() == CmEventNumber::kConnectRequest) (void)Adopt(last.id);
    if (Deliver(last, event)) return true;
  }
}

// The kernel gives the id's number again at once, and another id's events would be taken for these.
void CmIds::ForgetEventsOf(uint32_t number) {
  CmEventSlot& last = (*last_)[0];
  if (last.event != kNoEvent && last.id == number) last.event = kNoEvent;
  if (former_last_ && former_last_->id == number) former_last_waits_ = false;
}

// ---------------------------------------------------------------- a follower

// A follower's listeners have other uids than those that the dead process made last.
constexpr uint64_t kUidsOfOneProcess = uint64_t{1} << 32;

absl::Status CmIds::BeginTakeOver() {
  BATON_ASSIGN_OR_RETURN(CmFile file, CmFile::Open());
  former_.push_back(*std::exchange(file_, std::move(file)));
  last_uid_ += kUidsOfOneProcess;
  return absl::OkStatus();
}

void CmIds::TakeOver() {
  former_last_.reset();
  former_last_waits_ = closes_former_ = false;
  may_have_unread_ = true;
  if ((*last_)[0].event != kNoEvent) former_last_ = (*last_)[0];
  const std::vector<std::pair<const uint32_t, CmEndpoint*>> endpoints(endpoints_.begin(),
                                                                      endpoints_.end());
  for (const auto& [number, endpoint] : endpoints) endpoint->OnFormer();
}

absl::Status CmIds::Adopt(uint32_t number) {
  absl::Status moved = absl::NotFoundError("there is no former file");
  for (size_t i = former_.size(); i-- > 0;) {
    moved = file_->Migrate(former_[i].fd(), number).status();
    if (moved.ok()) return moved;
  }
  return absl::NotFoundError(moved.message());
}

const CmEventSlot* CmIds::LastOf(uint32_t number) const {
  return former_last_ && former_last_->id == number ? &*former_last_ : nullptr;
}

// The kernel had filled the dead process's slot, and not forgotten the event yet.
bool CmIds::IsFormerLast(const CmEventSlot& event) const {
  return former_last_ && event.number() == CmEventNumber::kConnectRequest &&
         std::memcmp(&event, &*former_last_, sizeof(event)) == 0;
}

// The dead process may not have handled its last event. What was handled already changes nothing. A
// request has an endpoint then, or has no id any more.
void CmIds::TakeRest() {
  std::vector<CmEndpoint*> listeners;
  for (const auto& [uid, listener] : listeners_) listeners.push_back(listener);
  for (CmEndpoint* const listener : listeners) listener->Rejoin();
  if (!former_last_) return;
  const bool requested = former_last_->number() == CmEventNumber::kConnectRequest;
  former_last_waits_ =
      !requested || (!endpoints_.contains(former_last_->id) && Adopt(former_last_->id).ok());
}

// Called when all events were read that had come before the takeover.
void CmIds::ForgetFormer() {
  former_.clear();
  former_last_.reset();
}

}  // namespace baton::verbs::rdma
