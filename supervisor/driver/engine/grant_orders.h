// Executes a keeper's orders to grant memory to peers, to register regions, and to revoke either,
// once for each request of a worker.
#ifndef SUPERVISOR_DRIVER_ENGINE_GRANT_ORDERS_H_
#define SUPERVISOR_DRIVER_ENGINE_GRANT_ORDERS_H_

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/driver.pb.h"
#include "supervisor/driver/engine/admission.h"
#include "supervisor/driver/engine/held_descriptors.h"
#include "supervisor/driver/engine/news_queue.h"
#include "supervisor/driver/engine/service_engine.h"

namespace baton::driver_process {

// Thread-compatible: the engine's thread.
class GrantOrders {
 public:
  // All outlive it. REQUIRES: the engine has stopped when this is destroyed.
  GrantOrders(ServiceEngine& engine, Admission& admission, const HeldDescriptors& held,
              NewsQueue& news)
      : engine_(engine), admission_(admission), held_(held), news_(news) {}

  // `news` reports the end of each, unless Grant() fails.
  absl::Status Grant(const internal::ReserveGrant& order);
  void Revoke(const internal::RevokeGrant& order);

  // Called when the worker is gone.
  void Forget(uint64_t worker_id) { last_.erase(worker_id); }

 private:
  // The last request for a grant, or to revoke one.
  struct LastGrant {
    uint64_t number = 0;  // 0: none
    internal::GrantChanged changed;
    bool is_over = false;
  };

  // kAborted: the worker has ended, or the range is in a heap that it does not own. `length`: 0 if
  // the order is not about the buffers.
  absl::Status CheckAsker(uint64_t worker_id, uint64_t offset, uint64_t length) const;
  absl::Status CheckAsker(const internal::ReserveGrant& order) const;
  absl::StatusOr<uint32_t> Reserve(const internal::GrantRequest& request);
  internal::Granted Describe(uint32_t grant, const internal::GrantRequest& request) const;
  bool HasEnded(uint64_t worker_id) const;
  void Withdraw(const internal::ReserveGrant& order, uint32_t grant, const absl::Status& why);
  template <typename Order>
  bool RepeatsGrant(const Order& order);
  template <typename Order>
  void ReportGrant(const Order& order, const absl::Status& status,
                   const internal::Granted& granted = {});

  ServiceEngine& engine_;
  Admission& admission_;
  const HeldDescriptors& held_;
  NewsQueue& news_;
  std::map<uint64_t, LastGrant> last_;  // by worker
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_GRANT_ORDERS_H_
