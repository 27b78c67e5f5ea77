#ifndef SUPERVISOR_CONTROL_WORKER_SERVICE_H_
#define SUPERVISOR_CONTROL_WORKER_SERVICE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "supervisor/control/callers.h"
#include "supervisor/control/keepers.h"
#include "supervisor/control/log_budget.h"
#include "supervisor/control/streams.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace baton {

// Bounds how many tokens of one user wait for a keeper's answer. Thread-safe.
class Redemptions {
 public:
  static constexpr size_t kPerUid = 64;

  // Returns false if that many wait already. After true End has to follow.
  bool Begin(uint32_t uid) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t& waiting = waiting_[uid];
    if (waiting == kPerUid) return false;
    ++waiting;
    return true;
  }

  void End(uint32_t uid) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = waiting_.find(uid);
    if (--entry->second == 0) waiting_.erase(entry);
  }

 private:
  std::mutex mutex_;
  std::map<uint32_t, size_t> waiting_;  // guarded by mutex_; no entry: none wait
};

// The objects that the worker service's streams share. They must outlive the streams.
struct WorkerServiceContext {
  Keepers* keepers;
  WorkerStreams* streams;
  PeerRegistry* peers;
  // How long a stream may be open without its first message.
  std::chrono::milliseconds hello_timeout;
  LogBudget log_budget;
  Redemptions redemptions;
};

std::unique_ptr<grpc::Service> MakeWorkerService(WorkerServiceContext* context);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_WORKER_SERVICE_H_
