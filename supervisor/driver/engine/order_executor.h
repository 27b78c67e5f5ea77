// Executes the orders of a service's keeper, on the engine.
#ifndef SUPERVISOR_DRIVER_ENGINE_ORDER_EXECUTOR_H_
#define SUPERVISOR_DRIVER_ENGINE_ORDER_EXECUTOR_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/base/clock.h"
#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/driver/engine/admission.h"
#include "supervisor/driver/engine/descriptor_orders.h"
#include "supervisor/driver/engine/grant_orders.h"
#include "supervisor/driver/engine/held_descriptors.h"
#include "supervisor/driver/engine/news_queue.h"
#include "supervisor/driver/engine/service_engine.h"
#include "supervisor/driver/workers/worker_forks.h"

namespace baton::driver_process {

// Thread-compatible: the thread that executes orders, which in a brokered service is not the
// engine's.
class OrderExecutor {
 public:
  // All outlive it. REQUIRES: the engine has not started, reports to `news`, and has stopped when
  // this is destroyed. `forks`: of a native service; null: no workers are forked.
  OrderExecutor(const v1::ServiceConfig& service, ServiceEngine& engine, NewsQueue& news,
                WorkerForks* forks = nullptr);

  // Reports the workers of a native service whose locks are marked, because its driver has no
  // thread that waits for the locks. The driver's one thread calls this in each of its turns.
  void LookAtLocks();

  // Gives up the handoffs that are under way: the keeper that has ordered them is dead.
  void CancelHandovers();

  const arena::Arena& arena() const { return engine_.arena(); }
  std::string_view device_name() const { return engine_.device_name(); }

  // Executes one order. `sent`: takes descriptors that go with the answer.
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> descriptors = {},
                                 std::vector<FileDescriptor>* sent = nullptr);

 private:
  // The last count of the device's objects. Counting takes time for each possible connection.
  struct Objects {
    driver::ObjectCounts counts;
    uint32_t connections = 0;
    uint32_t grants = 0;
    uint64_t counted_ns = 0;  // 0: never
  };

  // Each of these passes orders that it does not know to the next. They and all below run on the
  // engine's thread.
  absl::Status ExecuteOnWorkers(const internal::DriverOrder& order,
                                std::vector<FileDescriptor> descriptors,
                                internal::DriverAnswer* answer, std::vector<FileDescriptor>* sent);
  absl::Status ExecuteOnConnections(const internal::DriverOrder& order,
                                    internal::DriverAnswer* answer);
  absl::Status ExecuteOnService(const internal::DriverOrder& order, internal::DriverAnswer* answer);
  // Orders about the processes of native workers.
  absl::Status ExecuteOnForks(const internal::DriverOrder& order, internal::DriverAnswer* answer,
                              std::vector<FileDescriptor>* sent);
  absl::Status ExecuteOnDescriptors(const internal::DriverOrder& order,
                                    std::vector<FileDescriptor> descriptors,
                                    internal::DriverAnswer* answer,
                                    std::vector<FileDescriptor>* sent);
  absl::Status AddWorker(const internal::AddWorker& worker,
                         std::vector<FileDescriptor> descriptors);
  void ChangeWorker(const internal::ChangeWorker& order);
  absl::Status Detach(const internal::WorkerPlace& worker, internal::DriverAnswer* answer);
  bool Retire(const internal::RetireWorkers& order);
  bool Promote(const internal::PromoteWorkers& order);
  void HandOver(const internal::HandOver& order);
  void CancelHandOver(const internal::CancelHandOver& order);
  void LookAtShards(internal::ShardsSeen* seen);
  // Calls `execute`, unless `order` repeats the worker's last one: then the answer is the same.
  template <typename Order, typename Execute>
  absl::Status ExecuteOnce(const Order& order, internal::DriverAnswer* answer, Execute execute);
  absl::Status ListenAt(const internal::ListenAt& order, internal::Listening* listening);
  absl::Status CheckListen(const internal::ListenAt& order, const verbs::Address& address) const;
  absl::Status Connect(const internal::ConnectTo& order, internal::Connecting* connecting);
  uint32_t ConnectionsOf(uint64_t worker_id) const;
  void PutPolicyInForce(v1::Policy policy);
  void Account(const internal::Account& order, internal::ServiceAccounts* accounts);
  const driver::ObjectCounts& CountObjects(uint32_t grants);
  absl::Status ReplaceDriverCode(std::chrono::milliseconds probation);
  void Describe(internal::Description* description);
  void ListConnections(const internal::ListConnections& order, internal::Connections* connections);

  // These run on the thread that executes orders, because they wait for others or take long.
  absl::Status CheckStoredState(const internal::CheckStoredState& order);
  absl::Status NameOwner(const internal::ListenAt& order, const absl::Status& refused);
  void AddToDescription(internal::Description* description) const;

  const v1::ServiceConfig& service_;
  ServiceEngine& engine_;
  NewsQueue& news_;
  const uint64_t started_ns_ = MonotonicNanoseconds();
  uint64_t next_owner_search_ns_ = 0;  // when a worker's request may search next

  // The engine's thread uses the following.
  WorkerForks* const forks_;
  std::vector<pid_t> not_ready_;     // by slot: pid of a worker not ready yet; else 0
  std::vector<uint64_t> looked_at_;  // by slot: worker that LookAtLocks checks; 0: none
  // The last request for a listener or a connection, or to hold a descriptor, by worker.
  struct LastRequest {
    uint64_t number = 0;  // 0: none
    absl::Status status;
    internal::DriverAnswer answer;
  };
  std::map<uint64_t, LastRequest> last_requests_;

  Admission admission_;
  HeldDescriptors held_descriptors_;
  GrantOrders grants_;
  DescriptorOrders descriptor_orders_{held_descriptors_, admission_};
  Objects objects_;
  std::map<uint64_t, uint32_t> moving_;  // shards that are handed over, by the keeper's number
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_ORDER_EXECUTOR_H_
