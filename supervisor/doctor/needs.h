#ifndef SUPERVISOR_DOCTOR_NEEDS_H_
#define SUPERVISOR_DOCTOR_NEEDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lib/arena/layout.h"
#include "lib/driver/device_needs.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::doctor {

// The needs of one service, which are those of its driver: one process has its device.
struct ServiceNeeds {
  std::string name;
  bool rdma = false;
  std::string device;  // empty: the only one of the machine
  uint32_t port = 1;
  std::vector<std::string> listeners;  // addresses
  std::string network_namespace;       // empty: batond's
  v1::Placement placement;             // as configured
  arena::Shape shape = {};
  driver::DeviceNeeds of_device;
  // Queues that a provider such as mlx5 pins, too; those of others do not count. An estimate.
  uint64_t queue_bytes = 0;
  uint64_t memory_bytes = 0;  // of its arena
  uint64_t descriptors = 0;   // open at once, about
};

std::vector<ServiceNeeds> NeedsOf(const v1::Config& config);  // which is complete
// Returns the needs of a service of default size on an RDMA device.
ServiceNeeds DefaultNeeds();

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_NEEDS_H_
