// Records the changes that operators ask for, and bounds how often one caller may ask for them.
#ifndef SUPERVISOR_CONTROL_CHANGE_RECORD_H_
#define SUPERVISOR_CONTROL_CHANGE_RECORD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/server_context.h"
#include "lib/base/token_bucket.h"
#include "supervisor/control/audit_trail.h"
#include "supervisor/control/callers.h"
#include "supervisor/control/keepers.h"

namespace baton {

// Bounds how often one caller may ask for a change. Each change is recorded, and a trail that is
// filled without a pause loses its older records.
//
// A caller has two budgets: one for its changes, one for the bytes that its failed changes add to
// the trail. Once the second is used up, a change that failed the last time is not tried. So a
// script that repeats one failing change does not keep its user from other changes. After
// kMaxFailing different failing changes none is tried. Failures are forgotten whenever the second
// budget is full, so a caller that fails now and then never reaches that number.
//
// A caller whose changes all fail adds less than 2.5 MiB at once, and then less than 3.5 MiB a day,
// with the records of changes that were not tried. So the trail, of 64 MiB, lasts for 17 days.
//
// Thread-safe.
class ChangeBudget {
 public:
  static constexpr uint32_t kBurst = 1000;
  static constexpr uint32_t kPerSecond = 2;
  static constexpr uint64_t kFailedBytesBurst = 1 << 20;
  static constexpr uint64_t kFailedBytesPerDay = 2 << 20;

  struct Verdict {
    bool allowed = false;
    // If not allowed, the time until it is, in nanoseconds, if this caller asks for nothing else.
    uint64_t wait_ns = 0;
    // It is not allowed because of the caller's failed changes.
    bool failed_too_much = false;
    // This change was one of those. If false, so many others failed that none is tried.
    bool failed_itself = false;
    // More than 0: so many of this caller's changes were not allowed, and it is time to record
    // that.
    uint64_t to_record = 0;
  };

  // `change`: identifies the change.
  Verdict Take(const std::string& caller, const std::string& change, uint64_t now_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Caller& one = Find(caller, now_ns);
    Verdict verdict;
    const bool failed = one.failing.count(HashOf(change)) != 0;
    const bool may_fail = failed || one.failing.size() >= kMaxFailing;
    const uint64_t failures_wait_ns = may_fail ? one.failures.NanosecondsToWait(now_ns) : 0;
    verdict.failed_too_much = failures_wait_ns > 0;
    verdict.failed_itself = verdict.failed_too_much && failed;
    verdict.allowed = !verdict.failed_too_much && one.changes.TryTake(now_ns);
    if (!verdict.allowed) {
      verdict.wait_ns = std::max(failures_wait_ns, one.changes.NanosecondsToWait(now_ns));
      ++one.refused;
    }
    if (one.refused > 0 && (one.recorded_ns == 0 || now_ns >= one.recorded_ns + kRecordPauseNs)) {
      verdict.to_record = one.refused;
      one.refused = 0;
      one.recorded_ns = now_ns;
    }
    return verdict;
  }

  void Succeeded(const std::string& caller, const std::string& change, uint64_t now_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Find(caller, now_ns).failing.erase(HashOf(change));
  }

  // Call it when a change of this caller was tried and failed. `bytes`: the length of its records,
  // which is known only now. So the budget may go below zero, and the caller pays that back before
  // the same change is tried again.
  void Failed(const std::string& caller, const std::string& change, uint64_t bytes,
              uint64_t now_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Caller& one = Find(caller, now_ns);
    if (one.failing.size() < kMaxFailing) one.failing.insert(HashOf(change));
    one.failures.Take(static_cast<double>(bytes), kMaxFailedBytesOwed);
  }

 private:
  static constexpr size_t kMaxCallers = 256;
  static constexpr size_t kMaxFailing = 64;  // remembered per caller
  // More bytes than kMaxFailing failures add to the trail, so that a caller pays back all of them.
  // Otherwise it would gain the difference each time that it has waited for a full budget.
  static constexpr uint64_t kMaxFailedBytesOwed = 2 * kFailedBytesBurst;
  static constexpr uint64_t kRecordPauseNs = 60'000'000'000;
  static constexpr double kFailedBytesPerSecond = kFailedBytesPerDay / 86'400.0;

  struct Caller {
    TokenBucket changes;
    TokenBucket failures;      // bytes
    std::set<size_t> failing;  // hashes of changes that failed last, since `failures` was full
    uint64_t refused = 0;      // refused changes that are not recorded yet
    uint64_t recorded_ns = 0;  // 0: never
  };

  static size_t HashOf(const std::string& change) { return std::hash<std::string>()(change); }

  Caller& Find(const std::string& name, uint64_t now_ns) {
    Caller& caller = Place(name, now_ns);
    if (caller.failures.IsFull(now_ns)) caller.failing.clear();
    return caller;
  }

  // Returns the caller's place. Callers that find none, because there are kMaxCallers, share one.
  Caller& Place(const std::string& name, uint64_t now_ns) {
    const auto found = callers_.find(name);
    if (found != callers_.end()) return found->second;
    if (callers_.size() >= kMaxCallers) {
      for (auto entry = callers_.begin(); entry != callers_.end();) {
        Caller& caller = entry->second;
        const bool is_as_new =
            caller.changes.IsFull(now_ns) && caller.failures.IsFull(now_ns) && caller.refused == 0;
        entry = is_as_new ? callers_.erase(entry) : std::next(entry);
      }
    }
    const std::string place = callers_.size() < kMaxCallers ? name : "others";
    return callers_
        .try_emplace(place, Caller{TokenBucket(kPerSecond, kBurst, now_ns),
                                   TokenBucket(kFailedBytesPerSecond, kFailedBytesBurst, now_ns),
                                   {}})
        .first->second;
  }

  std::mutex mutex_;
  std::map<std::string, Caller> callers_;  // guarded by mutex_
};

// Records the calls that change something in the audit trail. Thread-safe.
class ChangeRecord {
 public:
  // All must outlive it.
  ChangeRecord(Keepers* keepers, const Callers* callers, AuditTrail* trail)
      : keepers_(keepers), callers_(callers), trail_(trail) {}

  // Does `work`, the change that `call` asks for, and records it before and after. `service`: the
  // name in the request, which may not exist. kResourceExhausted: this caller has asked for too
  // many changes lately, or too many of its changes have failed. Then nothing was done, and that is
  // recorded once a minute.
  absl::Status Do(const grpc::ServerContextBase& call, const std::string& what,
                  const google::protobuf::Message& request, const std::string& service,
                  const std::function<absl::Status()>& work);

 private:
  Keepers* const keepers_;
  const Callers* const callers_;
  AuditTrail* const trail_;
  ChangeBudget budget_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CHANGE_RECORD_H_
