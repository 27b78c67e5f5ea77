// The tables that `baton-driver` hands to the code of drivers (driver_code.h). Each describes what
// a forked process has inherited, and is made there, after Device::AfterFork(). Its pointers are
// valid as long as the table and what it was made of.
#ifndef SUPERVISOR_DRIVER_CODE_CODE_TABLES_H_
#define SUPERVISOR_DRIVER_CODE_CODE_TABLES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/device_objects.h"
#include "lib/native/queue_pair_pool.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/broker/broker_process.h"
#include "supervisor/driver/code/driver_code.h"
#include "supervisor/driver/native/native_driver.h"

namespace baton::driver_process {

// The arrays that BatonInheritedQueues points to.
class QueuesTable {
 public:
  absl::Status Describe(const arena::Arena& arena, const verbs::Device& device,
                        const native::QueuePairPool& pool, const driver::DeviceObjects& objects,
                        BatonInheritedQueues* described);

 private:
  std::vector<std::vector<BatonInheritedQueuePair>> queue_pairs_;  // by shard
  std::vector<BatonInheritedShard> shards_;
};

class BrokerTable {
 public:
  static absl::StatusOr<BrokerTable> Of(const BrokerInheritance& inheritance);
  const BatonBrokerHost& host() const { return host_; }

 private:
  QueuesTable queues_;
  std::vector<BatonBrokerWorker> workers_;
  BatonBrokerHost host_ = {};
};

class OwnerTable {
 public:
  static absl::StatusOr<OwnerTable> Of(const NativeInheritance& inheritance);
  const BatonOwnerHost& host() const { return host_; }

 private:
  QueuesTable queues_;
  std::vector<int32_t> wakes_;
  BatonOwnerHost host_ = {};
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_CODE_CODE_TABLES_H_
