// The ids that a device has in its file of the kernel's connection manager, and who gets their
// events.
#ifndef LIB_VERBS_RDMA_CM_ID_H_
#define LIB_VERBS_RDMA_CM_ID_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/shared_array.h"
#include "lib/verbs/rdma/cm_file.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

// The receiver of an id's events.
class CmEndpoint {
 public:
  virtual ~CmEndpoint() = default;
  // Returns true if the caller must report *out.
  virtual bool OnEvent(const CmEventSlot& event, CmEvent* out) = 0;
  // The file in which its id was is a dead process's. A connection leaves its id, which may be
  // adopted by another object. A listener waits for Rejoin().
  virtual void OnFormer() {}
  // Called for listeners after OnFormer(): moves the id to this process's file.
  virtual void Rejoin() {}
};

class CmId;

// Thread-compatible.
class CmIds {
 public:
  // Only listeners have a uid of their own, because a request's event names its listener by the uid
  // and the request by the id.
  static constexpr uint64_t kConnectionUid = 1;

  absl::Status Open();
  explicit operator bool() const { return file_.has_value(); }  // it is open
  CmFile* operator->() { return &*file_; }
  // Makes an id whose events the endpoint gets.
  absl::StatusOr<CmId> Create(CmEndpoint* endpoint, bool listens);
  // Reads the next event that has to be reported. False: there is none.
  bool NextEvent(CmEvent* event);

  // For a process that follows the one that opened the file: Device::{SetFollowable,BeginTakeOver,
  // TakeOver,AdoptId,DestroyUnknownIds}.

  absl::Status SetFollowable(bool followable) { return last_->SetInherited(followable); }
  absl::Status BeginTakeOver();
  void TakeOver();
  // Moves a connection's id from a dead process's file. kNotFound: it is not there.
  absl::Status Adopt(uint32_t number);
  // The event that the dead process read last, if it was of this id. It may not have handled it.
  const CmEventSlot* LastOf(uint32_t number) const;
  // Takes the listeners. NextEvent() takes the requests that nobody has seen. After
  // LetFormerClose() the kernel destroys all ids that are left in dead processes' files, once
  // NextEvent() has returned false.
  void TakeRest();
  void LetFormerClose() {
    closes_former_ = true;
    if (!may_have_unread_) ForgetFormer();
  }

  // The file is not closed: see CmFile.
  void Leave() { file_->Leave(); }

 private:
  friend class CmId;
  static constexpr uint32_t kNoEvent = ~uint32_t{0};

  bool Deliver(const CmEventSlot& event, CmEvent* out);
  void ForgetEventsOf(uint32_t number);
  bool IsFormerLast(const CmEventSlot& event) const;
  void ForgetFormer();

  std::optional<CmFile> file_;
  absl::flat_hash_map<uint32_t, CmEndpoint*> endpoints_;  // by the id's number
  absl::flat_hash_map<uint64_t, CmEndpoint*> listeners_;  // by uid
  uint64_t last_uid_ = kConnectionUid;
  // The last event that was read, until the next one is asked for; kNoEvent: there is none. A
  // follower has the memory, too. The kernel fills it before it forgets the event.
  std::optional<SharedArray<CmEventSlot>> last_;
  // A follower alone uses these.
  std::vector<CmFile> former_;  // dead processes' files, the oldest first
  std::optional<CmEventSlot> former_last_;
  bool former_last_waits_ = false;  // to be delivered before others
  bool may_have_unread_ = false;    // the file may have events from before the takeover
  bool closes_former_ = false;
};

// Owns an id: it is destroyed, and its endpoint gets no event any more. `ids` outlive it.
class CmId {
 public:
  CmId() = default;
  // Takes the id `number`, whose events `endpoint` gets from now on.
  CmId(CmIds* ids, uint32_t number, CmEndpoint* endpoint, uint64_t uid = CmIds::kConnectionUid)
      : ids_(ids), number_(number), uid_(uid), endpoint_(endpoint) {
    ids->endpoints_[number] = endpoint;
    if (uid != CmIds::kConnectionUid) ids->listeners_[uid] = endpoint;
  }
  CmId(CmId&& other) noexcept { *this = std::move(other); }
  CmId& operator=(CmId&& other) noexcept {
    std::swap(ids_, other.ids_);
    std::swap(number_, other.number_);
    std::swap(uid_, other.uid_);
    std::swap(endpoint_, other.endpoint_);
    return *this;
  }
  ~CmId() {
    if (ids_ == nullptr) return;
    Silence();
    ids_->ForgetEventsOf(number_);
    (void)(*ids_)->Destroy(number_);
  }

  explicit operator bool() const { return ids_ != nullptr; }
  uint32_t number() const { return number_; }
  // Its events are dropped from now on.
  void Silence() {
    const auto found = ids_->endpoints_.find(number_);
    if (found != ids_->endpoints_.end() && found->second == endpoint_) {
      ids_->endpoints_.erase(found);
    }
    ids_->listeners_.erase(uid_);
  }
  // The kernel keeps the id.
  void Release() {
    if (ids_ != nullptr) Silence();
    ids_ = nullptr;
  }

 private:
  CmIds* ids_ = nullptr;
  uint32_t number_ = 0;
  uint64_t uid_ = 0;
  CmEndpoint* endpoint_ = nullptr;
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_CM_ID_H_
