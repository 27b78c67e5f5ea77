// What `baton-driver` hands to a broker's code (broker_object.h).
#ifndef SUPERVISOR_DRIVER_BROKER_BROKER_TABLE_H_
#define SUPERVISOR_DRIVER_BROKER_BROKER_TABLE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "supervisor/driver/broker/broker_object.h"
#include "supervisor/driver/broker/broker_process.h"

namespace baton::driver_process {

class BrokerTable {
 public:
  // Describes what a forked process has inherited. Called there, after Device::AfterFork().
  // `inheritance` outlives the table.
  static absl::StatusOr<BrokerTable> Of(const BrokerInheritance& inheritance);

  // Its pointers are valid as long as the table.
  const BatonBrokerHost& host() const { return host_; }

 private:
  absl::Status Describe(const BrokerInheritance& inheritance);

  BatonBrokerHost host_ = {};
  std::vector<std::vector<BatonInheritedQueuePair>> queue_pairs_;  // by shard
  std::vector<BatonBrokerShard> shards_;
  std::vector<BatonBrokerWorker> workers_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKER_TABLE_H_
